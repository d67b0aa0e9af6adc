"""The memory that one rank takes on its device, found by running a step on the meta device.

Runs in a child process of `airlock plan` (estimate.py), without a GPU.
"""
