"""The files of a model and of data: digests of their contents, and the tokenizer of a model.

Runs in the child process that prepares data, in a child of its own (ask_class.py), and in ranks.
"""
