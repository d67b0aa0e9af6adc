"""Conversations: messages as data have them, their values, and the text a chat template writes.

Runs in the child process that prepares data, in ranks that stream, and where a model is talked to.
"""
