"""`airlock doctor`: the root cause of a failed run, from its folder or from any log."""
