"""What of docs/ is made from code: `PYTHONPATH=. python -P -m docs.tables`.

It runs where someone works on Airlock, and nothing of Airlock imports it.
"""
