"""Processes: how they are started, signalled, recognised and ended, and what they write.

Imported by the launcher and by what it starts.
"""
