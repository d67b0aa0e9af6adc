"""Streamed data, which ranks read and tokenise themselves while they train.

count_and_try.py runs in the child process that prepares data, everything else in the ranks.
"""
