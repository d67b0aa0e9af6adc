"""The launcher, run by the start scripts: it starts training ranks and watches them to the end.

The launcher process runs commands/, checks/ and run/; each folder names the process that runs it.
"""
