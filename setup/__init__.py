"""Set-up of the Python that all else runs with: chosen by environment.sh, or made by uv.

Runs before there is an environment: the standard library only, in whatever Python there is.
"""
