"""The Python that all else runs with: chosen by the start scripts' shell, or made by uv.

Runs before there is an environment: the standard library only, in whatever Python there is.
"""
