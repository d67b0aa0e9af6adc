"""The training loop and what a step needs: batches, optimizer, evaluation, checkpoints.

Runs in the ranks.
"""
