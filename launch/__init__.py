"""What the start scripts run: from a profile to ranks that train, watched until they end.

The modules here run in the launcher; each room below says which process runs what is in it.
"""
