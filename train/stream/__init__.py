"""Data that are not prepared: ranks read and tokenise their rows while they train.

prepare_stream.py runs in the child that prepares data, everything else in the ranks.
"""
