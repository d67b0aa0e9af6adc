"""Programs that read, tokenise or stream a corpus, each in a process of its own.

Run by benchmarks/data.py, streaming.py and tokenising.py.
"""
