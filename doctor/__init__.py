"""`airlock doctor`: the root cause of a failed or hung run, with the evidence and the fix.

Runs in a process of its own, and in the launcher for the run that it watches. logs/ reads any log
by the rules in rules/; runs/ reads Airlock's run folders; outside/ looks at live processes of any
launcher.
"""
