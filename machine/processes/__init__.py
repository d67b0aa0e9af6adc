"""Processes: starting, signalling, identifying and ending them, and their output.

Imported by the launcher and by the processes it starts; child.py and keeper.py are such processes.
"""
