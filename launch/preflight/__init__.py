"""Will it start? Checks of the machine, each a function from a context to findings.

Runs in the launcher, in threads, within two seconds.
"""
