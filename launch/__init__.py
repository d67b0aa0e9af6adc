"""The launcher, run by the start scripts: it starts training ranks and watches them to the end.

The modules here run in the launcher process; each subpackage names the process that runs it.
"""
