"""The rows of the table of events, by what they tell of; `rundir.schema` joins them.

Runs in every process, and in the generator of the documents.
"""
