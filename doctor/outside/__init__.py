"""The doctor for any training process of this machine, whoever started it: `airlock doctor --pid`.

Run by that command. It only looks: no process is signalled or stopped.
"""
