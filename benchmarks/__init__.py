"""Side-by-side measurements: each is one command that compares with what a user could pick."""
