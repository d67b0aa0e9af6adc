"""`airlock check`: runs the rungs of diagnostics/ one after the other, each as a child process.

Runs in the launcher.
"""
