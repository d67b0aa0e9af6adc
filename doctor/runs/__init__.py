"""From a run folder to a verdict: events first, then stacks, then logs.

Runs in `airlock doctor`, and in the launcher when a run has failed or hangs.
"""
