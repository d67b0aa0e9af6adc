"""From the lines of any log to a verdict: strip prefixes, match rules, choose one cause.

Runs in `airlock doctor`, and in the launcher when a run has failed.
"""
