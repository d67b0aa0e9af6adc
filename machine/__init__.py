"""What any process of ours asks of the machine: memory, cores, GPUs, limits, processes.

Imported by every process of a run; asks the kernel and NVML, and never imports torch.
"""
