"""What all endpoints of the API share: how one is described, and how an error is answered.

Runs in the server.
"""
