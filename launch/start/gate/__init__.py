"""The gate: admits processes to import and load, one at a time or as memory allows.

Runs in every process that passes it: the zygote, the ranks, a script that imports `airlock`.
"""
