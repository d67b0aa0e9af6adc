"""From the lines of any log to a verdict: prefixes off, rules matched, one cause chosen.

Runs in `airlock doctor`, and in the launcher when a run has failed.
"""
