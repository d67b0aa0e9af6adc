"""The rows that a step trains on: their order, packing, and the batches of each rank.

Runs in the ranks.
"""
