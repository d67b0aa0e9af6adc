"""`airlock serve` and `airlock monitor`: run folders shown over HTTP, as JSON and as pages.

Runs in a process of its own, which reads run folders and nothing else; training does not know of
it. What it writes: requests in control/, with the token only, and its own index in the cache.
"""
