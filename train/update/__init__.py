"""What a step changes: the optimizer, its learning rate, rounding in bfloat16, DDP's buckets.

Runs in the ranks.
"""
