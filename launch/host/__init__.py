"""The host: its memory, cores, GPUs, mounts and limits, and the environment of the ranks.

Imported by every process of a run; asks the kernel and NVML, and never imports torch.
"""
