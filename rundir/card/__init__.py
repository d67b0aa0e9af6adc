"""The card of an exported model, made from the run folder alone.

Rank 0 runs it, and the launcher for uploads. It needs the standard library only.
"""
