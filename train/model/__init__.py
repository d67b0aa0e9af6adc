"""The model: loading, adapters, four bits, attention, its head and the loss, the export.

Runs in the ranks, in the zygote where it builds the model, and in the trace.
"""
