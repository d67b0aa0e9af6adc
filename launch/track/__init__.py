"""Tracking: the metrics of a run for TensorBoard, Weights & Biases and trackio.

Runs in a process of its own beside the run (the sidecar), which the launcher starts.
"""
