"""The state of a run, folded from its events: phase, ranks, failures, hangs, memory.

Runs in any process that shows or judges a run: the launcher, the doctor, a plain run.
"""
