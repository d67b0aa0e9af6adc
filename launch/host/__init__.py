"""What this machine is and gives: memory, cores, GPUs, mounts, limits, the ranks' environment.

Imported by every process of a run; reads the kernel and NVML, never torch.
"""
