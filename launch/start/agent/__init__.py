"""The agent: torch's elastic agent in torchrun's place, which starts and restarts the ranks.

Runs in the agent process, a child of the launcher.
"""
