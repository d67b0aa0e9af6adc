"""What one rank takes on its device, found by running a step on the meta device.

Runs in a child of `airlock plan` (footprint.py), without a GPU.
"""
