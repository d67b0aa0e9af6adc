"""One HTML file with the pages of one run, to be opened without a server and without a network.

Runs in a process of its own, `python -m monitor.report`, which `airlock report` becomes.
"""
