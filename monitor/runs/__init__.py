"""Run folders as the monitor reads them: listing, state, rows, events, logs, configuration.

Runs in the process of `airlock serve`; never writes, and opens no file outside of a run folder.
"""
