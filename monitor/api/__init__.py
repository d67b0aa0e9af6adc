"""The HTTP side of `airlock serve`: routes, security, controls, the OpenAPI document, the server.

Runs in the process of `airlock serve`.
"""
