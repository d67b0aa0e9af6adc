"""From what was typed to a job: profile, environment and options, resolved and checked.

Runs in the launcher, and in the commands that show what a run would do; starts nothing.
"""
