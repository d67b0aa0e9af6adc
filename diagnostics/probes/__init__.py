"""The building blocks of the rungs: findings, short runs, probes of GPUs, imports and collectives.

They run inside the rungs, except collective_rank.py and import_child.py, which rungs start as child
processes.
"""
