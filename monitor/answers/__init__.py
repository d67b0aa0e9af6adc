"""A model's answers as it learns: the snapshots in run folders, compared, filtered and exported.

Runs in the process of `airlock serve`, and of `airlock report`; it writes nothing.
"""
