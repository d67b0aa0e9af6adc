"""Metrics of runs: an index of them in the cache folder, down-sampling, and the stream of changes.

The server's process runs it. What has to be indexed at length is done by a process of its own with
the least priority (`python -m monitor.metrics`), started only when someone looks.
"""
