"""Host memory: what is free, what a process has and had, and how much address space it may reserve.

Imported by every process of a run; address_probe.py is also a process of its own.
"""
