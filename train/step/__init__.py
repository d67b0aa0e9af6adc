"""The training loop and what a step needs: checkpoints, guards, requests.

Runs in the ranks.
"""
