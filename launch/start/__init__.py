"""Start-up of the ranks: the gate they pass, the agent that starts them, and the ranks themselves.

Runs in the agent, the zygote and the ranks; the launcher only starts the agent.
"""
