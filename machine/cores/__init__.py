"""CPU cores: how many this process may use, which lie near a GPU, and binding to them.

Imported by the launcher, which plans the binding, and by the ranks, which carry it out.
"""
