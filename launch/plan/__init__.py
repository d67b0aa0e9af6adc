"""The memory plan of a run: bytes per rank on GPU and host, and what would fit instead.

Runs in the launcher; the model is traced in a child (train/trace/estimate.py).
"""
