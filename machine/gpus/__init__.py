"""GPUs: which a run may use, what they do and hold, and the settings of torch's allocator.

Imported by the launcher and by the ranks; asks NVML, and never imports torch.
"""
