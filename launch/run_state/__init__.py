"""The state of a run, folded from its events: phase, ranks, failures, hangs, memory.

Runs in whatever shows or judges a run: the launcher, the doctor, a plain run.
"""
