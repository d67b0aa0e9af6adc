"""Will it fit? Bytes per rank on the GPU and the host, and what would fit instead.

Runs in the launcher; the model is traced in a child (train/trace/estimate.py).
"""
