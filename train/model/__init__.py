"""The model: loading, adapters, four-bit weights, attention, head and loss, export.

Runs in the ranks, in the zygote when it builds the model, and in the trace.
"""
