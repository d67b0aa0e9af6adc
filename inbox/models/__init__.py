"""The models of an inbox: kept, scored beside those before, and one of them made current.

Runs in the daemon.
"""
