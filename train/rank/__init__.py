"""The rank as a process among others: its process group, watchdog, threads and forks.

Runs in the ranks; threads.py also runs in the zygote.
"""
