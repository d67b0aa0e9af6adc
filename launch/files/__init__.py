"""The model's and the data's files: found, fetched, checked and made ready before ranks start.

Runs in the launcher; what downloads is a child of its own (fetch, fetch_data).
"""
