"""Supervision of a run until its end: pass on a stop, guard memory, judge a hang, report.

Runs in the launcher. The keeper (machine/processes/keeper.py), a process of its own, outlives it.
"""
