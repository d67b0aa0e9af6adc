"""The inbox: a daemon that trains whatever lands in a folder, by `./start.sh` as a person would.

Runs in a process of its own, `python -m inbox`, which `./airlock inbox` becomes. It imports the
standard library, `rundir`, `machine` and click, never the launcher or torch: what it knows of a
training it reads from the run's folder.
"""
