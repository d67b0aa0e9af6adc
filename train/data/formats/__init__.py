"""The formats of data files, one file each: their endings, first bytes, rows, blocks and pieces.

known.py lists them; a new one is a subclass of `TextFormat` or `BatchFormat`, and its line there.
Runs in the child process that prepares data, in ranks that stream, and in the launcher, which looks
at the first rows: so nothing here loads pyarrow or numpy before a file needs it.
"""
