"""What `airlock clean` may remove, and how it does; a process of its own.

Old runs, checkpoints of runs that are done, caches, old models of an inbox.
"""
