"""The rungs of the ladder, one file each: `python -m diagnostics.NAME`, or `airlock check`.

Each runs in its own process; probes/ holds the shared code, doctor/ diagnoses failed runs.
"""
