"""Files as everything here handles them: read while they grow, locked, made for a while, counted.

Imported by every process; standard library only.
"""
