"""Checks before a run: of the machine (preflight), and the rungs of diagnostics/ (the ladder).

Runs in the launcher: preflight in threads, within two seconds; each rung is a child process.
"""
