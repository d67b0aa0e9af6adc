"""Checks of the machine before a run, each a function from a context to findings.

Runs in the launcher, in threads, within two seconds.
"""
