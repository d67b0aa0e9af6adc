"""What all endpoints of the API share: the form of answers and of errors, and of parameters.

Runs in the server.
"""
