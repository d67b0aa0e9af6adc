"""Side-by-side measurements: each is one command that compares Airlock with the alternatives."""
