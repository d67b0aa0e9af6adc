"""One start of a launcher, Airlock's or a peer's: begun, followed to its barrier, measured.

Runs in `python -m benchmarks.startup`; peer_script.py is what the peers' ranks run.
"""
