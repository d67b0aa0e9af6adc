"""Streamed data, which ranks read and tokenise themselves while they train.

prepare_stream.py runs in the child process that prepares data, everything else in the ranks.
"""
