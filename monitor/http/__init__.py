"""What all endpoints of the API share: the form of answers and of errors.

Runs in the server.
"""
