"""From files to tokenised samples: columns, conversations, templates, masks, the cache.

Runs in the child that prepares data (train/prepare.py), and in ranks that stream.
"""
