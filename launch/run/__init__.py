"""One run from start to end: made ready, started, supervised and reported.

Runs in the launcher, or in the only rank of a plain run.
"""
