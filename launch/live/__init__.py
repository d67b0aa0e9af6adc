"""Controls of a live run: `airlock pause`, `save`, `set`, `trace`; each a process of its own.

They talk to the run through its folder alone: control/ and events/.
"""
