"""The instances that a GPU is cut into (MIG): each is a device of its own, with its own memory.

https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: CUDA shows a process one instance, however
many CUDA_VISIBLE_DEVICES names. Slurm and Kubernetes name them there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from machine.gpus import nvml

PREFIX = "MIG-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One instance of the GPU `index`. `old_name` is its name before driver 470."""

    index: int
    uuid: str
    old_name: str
    name: str
    memory_bytes: int

    def is_called(self, entry: str) -> bool:
        """Return whether an entry of CUDA_VISIBLE_DEVICES means this instance."""
        begins = entry != PREFIX and self.uuid.startswith(entry)
        return begins or entry == self.old_name


def all_parts() -> list[Part]:
    """Return the instances of all GPUs that this process may see; may take long."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        nvml.open_driver()
        return [part for index in range(pynvml.nvmlDeviceGetCount()) for part in parts_of(index)]
    return []


def parts_of(index: int) -> list[Part]:
    """Return the instances of one GPU; none if it is whole, or does not answer."""
    import pynvml as nv

    found_parts: list[Part] = []
    with contextlib.suppress(nv.NVMLError):
        gpu = nv.nvmlDeviceGetHandleByIndex(index)
        gpu_uuid, gpu_name = nv.nvmlDeviceGetUUID(gpu), nv.nvmlDeviceGetName(gpu)
        for handle in nvml.mig_handles(gpu):
            memory_bytes = int(nv.nvmlDeviceGetMemoryInfo(handle).total)
            ids = (nv.nvmlDeviceGetGpuInstanceId(handle), nv.nvmlDeviceGetComputeInstanceId(handle))
            found_parts.append(
                Part(
                    index=index,
                    uuid=nv.nvmlDeviceGetUUID(handle),
                    old_name=f"{PREFIX}{gpu_uuid}/{ids[0]}/{ids[1]}",
                    name=nvml.answer_or(f"{gpu_name} MIG", nv.nvmlDeviceGetName, handle),
                    memory_bytes=memory_bytes,
                )
            )
    return found_parts
