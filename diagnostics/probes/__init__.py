"""What the rungs are made of: findings, short runs, probes of GPUs, imports and collectives.

Runs in the rungs; collective_rank.py and import_child.py are processes that they start.
"""
