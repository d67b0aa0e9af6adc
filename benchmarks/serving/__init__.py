"""Parts of benchmarks/serve.py: run folders, the server, a live run, and TensorBoard beside it.

A person's own process runs them, on a machine that has nothing else to do.
"""
