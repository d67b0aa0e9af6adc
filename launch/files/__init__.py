"""Model and data files: finding, fetching, checking and preparing them before ranks start.

Runs in the launcher; downloads run in child processes (fetch, fetch_data).
"""
