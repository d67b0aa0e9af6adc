"""From files to tokenised samples: columns, conversations, templates, loss masks, the cache.

Runs in the child process that prepares data (train/prepare.py), and in ranks that stream.
"""
