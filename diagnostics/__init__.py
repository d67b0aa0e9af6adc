"""The ladder's rungs, one file for each: `python -m diagnostics.NAME`, or `airlock check`.

Each runs in a process of its own; probes/ holds what they share, doctor/ reads failed runs.
"""
