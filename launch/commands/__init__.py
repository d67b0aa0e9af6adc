"""The commands of `./airlock`, a file each: its options, and what is done with them.

Runs in the process that was typed, which for `run` is the launcher.
"""
