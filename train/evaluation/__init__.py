"""Evaluation on held-out data: losses, answers, and snapshots of answers as they change.

Runs in the ranks.
"""
