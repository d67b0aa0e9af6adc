"""Files as everything here handles them: read while they grow, locked, and the room left for them.

Imported by every process; standard library only.
"""
