"""Brings ranks up on a node: profile, checks, torchrun, supervision, and the rank's start-up."""
