"""Watch a run until it ends: pass a stop on, guard the memory, judge a hang, report the end.

Runs in the launcher; keeper.py is a process of its own that outlives it.
"""
