"""A rank as a process among others: its process group, watchdog, threads and forks.

Runs in the ranks, of Airlock's trainer or of a script.
"""
