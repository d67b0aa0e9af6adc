"""Configuration: profile, environment and options, resolved and checked into a job.

Runs in the launcher, and in the commands that show what a run would do; starts nothing.
"""
