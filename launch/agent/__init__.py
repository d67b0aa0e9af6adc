"""torch's elastic agent, which starts the ranks and restarts them; torchrun's place.

Runs in the agent, a child of the launcher.
"""
