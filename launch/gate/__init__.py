"""The gate: which process may import and load now, one at a time or as memory allows.

Runs in whatever passes it: the zygote, the ranks, a script that imports `airlock`.
"""
