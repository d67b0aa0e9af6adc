"""The run folder: the contract between everything that makes a run and everything that shows it.

Standard library only, so that any program can read a run without torch, rich or a launcher.
"""
