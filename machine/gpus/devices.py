"""The GPUs a run may use, and its number of ranks. Asks NVML; never imports torch.

A GPU may be cut into instances (MIG), each a device with memory of its own. CUDA shows a process
one of them, however many CUDA_VISIBLE_DEVICES names; Slurm and Kubernetes name them there
(https://docs.nvidia.com/datacenter/tesla/mig-user-guide/).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pynvml as nv

from machine.gpus import nvml
from machine.gpus.torch_build import ROCM_DO, torch_build
from machine.timeouts import within
from machine.typed import again, console_program, start_program
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError

T = TypeVar("T")

DEFAULT_CPU_RANKS = 2
USUAL_GPU = "H100-80G"  # to plan for, where there is none: in launch/plan/catalogue.toml
A_NODE = 8  # ranks of a node with GPUs that is not this one, if no number is given
MAX_RANKS = 1024
_DRIVER_TIMEOUT_S = 60.0  # without persistence mode it wakes one GPU after another, seconds each
_MIG = "MIG-"  # begins the UUIDs of instances
MAX_CPU_RANKS = 64  # more would only thrash, and a typo (NUM_GPUS=200) should not start them


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML lists it, or an instance of one (MIG). `memory_bytes` is its total memory."""

    index: int  # of an instance: that of its GPU
    uuid: str
    name: str
    memory_bytes: int
    old_name: str = ""  # of an instance: its name before driver 470

    @property
    def is_instance(self) -> bool:
        """True for an instance: CUDA shows a process no more than one, and NCCL joins none."""
        return self.uuid.startswith(_MIG)


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and number of the ranks on this node, and where the number comes from."""

    device: Literal["cuda", "cpu"]
    num_ranks: int
    source: str
    gpus: tuple[Gpu, ...]

    @property
    def is_here(self) -> bool:
        """False if the run needs GPUs that this machine does not have; it is only shown then."""
        return self.device == "cpu" or bool(self.gpus)


def installed_gpus() -> list[Gpu]:
    """Return every NVIDIA GPU that answers, in NVML's (PCI bus) order; none without a driver.

    Of a GPU with a single instance to be seen (MIG), as in a container, the instance. Raises
    UserError if the driver does not answer within the timeout.
    """
    return _answer_of_driver(_ask_for_gpus)


def _answer_of_driver(ask: Callable[[], T]) -> T:
    try:
        return within(_DRIVER_TIMEOUT_S, ask)
    except TimeoutError as error:
        raise UserError(
            f"the NVIDIA driver has not answered for {_DRIVER_TIMEOUT_S:.0f} s",
            do="nvidia-smi   # if that hangs too: `sudo dmesg | grep -i nvrm`, then reboot",
            code=ExitCode.PREFLIGHT,
        ) from error


def _ask_for_gpus() -> list[Gpu]:
    gpus: list[Gpu] = []
    for index, handle in nvml.handles():
        instances = _instances_of(index, handle)
        if len(instances) == 1:
            gpus += instances
            continue
        with contextlib.suppress(nv.NVMLError):
            memory_bytes = int(nv.nvmlDeviceGetMemoryInfo(handle).total)
            uuid, name = nv.nvmlDeviceGetUUID(handle), nv.nvmlDeviceGetName(handle)
            gpus.append(Gpu(index, uuid, name, memory_bytes))
    return gpus


def _instances_of(index: int, gpu: Any) -> list[Gpu]:
    """Return the instances of one GPU; none if it is whole, or does not answer."""
    instances: list[Gpu] = []
    with contextlib.suppress(nv.NVMLError):
        gpu_uuid, gpu_name = nv.nvmlDeviceGetUUID(gpu), nv.nvmlDeviceGetName(gpu)
        for handle in nvml.mig_handles(gpu):
            ids = (nv.nvmlDeviceGetGpuInstanceId(handle), nv.nvmlDeviceGetComputeInstanceId(handle))
            instances.append(
                Gpu(
                    index=index,
                    uuid=nv.nvmlDeviceGetUUID(handle),
                    name=nvml.answer_or(f"{gpu_name} MIG", nv.nvmlDeviceGetName, handle),
                    memory_bytes=int(nv.nvmlDeviceGetMemoryInfo(handle).total),
                    old_name=f"{_MIG}{gpu_uuid}/{ids[0]}/{ids[1]}",
                )
            )
    return instances


def _ask_for_instances() -> list[Gpu]:
    return [instance for gpu in nvml.handles() for instance in _instances_of(*gpu)]


def visible_gpus(
    installed: list[Gpu],
    cuda_visible_devices: str | None,
    instances: Callable[[], list[Gpu]] = lambda: _answer_of_driver(_ask_for_instances),
) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order.

    CUDA itself silently drops everything from the first invalid entry on; here an invalid entry
    raises UserError. Entries are indices, UUID prefixes or `instances` (MIG-…); "-1" or nothing
    hides every GPU.
    """
    if cuda_visible_devices is None:
        return installed
    entries = [entry.strip() for entry in cuda_visible_devices.split(",")]
    if entries in ([""], ["-1"], ["NoDevFiles"]):
        return []
    chosen = [
        _find_instance(instances(), entry, cuda_visible_devices)
        if entry.startswith(_MIG)
        else _find_gpu(installed, entry, cuda_visible_devices)
        for entry in entries
    ]
    if len(set(chosen)) < len(chosen):
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={cuda_visible_devices} names a GPU twice",
            do="name each GPU once",
        )
    return chosen


def _find_gpu(installed: list[Gpu], entry: str, spec: str) -> Gpu:
    matching = [
        gpu
        for gpu in installed
        if entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={spec}: {entry!r} begins the UUIDs of {len(matching)} GPUs",
            do="write more of it; `nvidia-smi -L` lists them",
        )
    if not installed:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={spec} names GPU {entry!r}, but this machine has no NVIDIA GPU",
            do=f"env -u CUDA_VISIBLE_DEVICES {start_program()} tiny   # trains on CPU",
        )
    last = len(installed) - 1
    raise UserError(
        f"CUDA_VISIBLE_DEVICES={spec} names GPU {entry!r}; this machine has GPUs 0 to {last}",
        do=f"CUDA_VISIBLE_DEVICES={','.join(str(gpu.index) for gpu in installed)}",
    )


def _find_instance(instances: list[Gpu], entry: str, spec: str) -> Gpu:
    matching = [
        gpu
        for gpu in instances
        if entry == gpu.old_name or (entry != _MIG and gpu.uuid.startswith(entry))
    ]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(gpu.uuid for gpu in instances) or "none that can be seen from here"
    raise UserError(
        f"CUDA_VISIBLE_DEVICES={spec}: {entry!r} names {len(matching) or 'no'} "
        f"instance{'s' * (len(matching) > 1)} of a GPU (MIG); there "
        f"{'are' if instances else 'is'} {there}",
        do=f"CUDA_VISIBLE_DEVICES={instances[0].uuid}"
        if instances
        else "nvidia-smi -L   # lists them",
    )


def place(
    config: RunConfig, asked: tuple[int, str] | None, visible: list[Gpu], plan: str = ""
) -> Placement:
    """Return device and number of ranks. `asked` is (number, source) if the user set a number.

    `plan` is the command that plans the same training for GPUs, where that is known.

    Raises UserError if a GPU is needed and none is visible, or the number is not available.
    """
    wants = config.launch.device
    device: Literal["cuda", "cpu"] = "cuda" if visible and wants != "cpu" else "cpu"
    if device == "cpu" and (config.launch.needs_gpu or wants == "cuda"):
        fault = None if visible else nvml.driver_fault()
        build = None if visible or fault else torch_build()
        why = "launch.device is cpu" if visible else fault.text if fault else "none is visible"
        do = f"nvidia-smi -L   # does it list any? `{start_program()} tiny` runs on CPU"
        if config.script is None:
            num = "" if asked is None else f" --num-gpus {asked[0]}"
            plan = plan or f"{console_program()} plan {config.profile} --gpu {USUAL_GPU}{num}"
            do = (
                f"{plan}   # is it for such GPUs? Here: `{start_program()} tiny`, on CPU, or "
                "`nvidia-smi -L`, if there should be GPUs"
            )
        if build is not None and build.of_rocm:
            why, do = f"none is visible; {build.of_rocm}", ROCM_DO
        raise UserError(
            f"{config.profile} needs an NVIDIA GPU and {why}",
            do=fault.do if fault else do,
            code=ExitCode.PREFLIGHT,
        )
    limit = len(visible) if device == "cuda" else MAX_CPU_RANKS
    if asked is None:
        number = limit if device == "cuda" else DEFAULT_CPU_RANKS
        source = "every visible GPU" if device == "cuda" else "the default on CPU"
    else:
        number, source = asked
    if not 1 <= number <= limit:
        there = f"{limit} GPUs are visible" if device == "cuda" else f"CPU runs take 1 to {limit}"
        raise UserError(
            f"{source} asks for {number} ranks; {there}",
            do=again(config.profile, {"NUM_GPUS": str(min(max(number, 1), limit))}),
        )
    chosen = tuple(visible[:number]) if device == "cuda" else ()
    _check_instances(chosen, config.profile)
    return Placement(device, number, source, chosen)


def place_elsewhere(config: RunConfig, asked: tuple[int, str] | None) -> Placement:
    """Return where a run that cannot be placed here would be, to show what else there is to show.

    Without a number asked for, that is a node of eight GPUs, as for a plan.
    """
    wants_gpu = config.launch.needs_gpu or config.launch.device == "cuda"
    if not wants_gpu:
        return Placement("cpu", DEFAULT_CPU_RANKS, "the default on CPU", ())
    number, source = asked or (A_NODE, "a node of eight, as none is visible")
    if not 1 <= number <= MAX_RANKS:
        number, source = A_NODE, "a node of eight"
    return Placement("cuda", number, source, ())


def _check_instances(chosen: Sequence[Gpu], profile: str) -> None:
    """Raise UserError for an instance among several GPUs, before a rank fails to find its own."""
    instance = next((gpu for gpu in chosen if gpu.is_instance), None)
    if instance is None or len(chosen) == 1:
        return
    alone = again(profile, {"CUDA_VISIBLE_DEVICES": instance.uuid, "NUM_GPUS": "1"})
    raise UserError(
        f"{len(chosen)} ranks are to have a GPU each, and {instance.uuid} is an instance of one "
        "(MIG): CUDA shows a process a single instance, and NCCL cannot join them",
        do=f"{alone}   # on that instance alone; all of the GPU: "
        f"sudo nvidia-smi -i {instance.index} -mig 0",
        code=ExitCode.PREFLIGHT,
    )


def asked_num_ranks(
    option: int | None, config: RunConfig, config_source: str, environ: Mapping[str, str]
) -> tuple[int, str] | None:
    """Return the requested number of ranks and its source, or None if there is no request.

    Sources include the option, NUM_GPUS and the start script's preset. Raises UserError if the text
    is not a whole number.
    """
    is_environments = config_source.startswith("environment")
    preset = _number(environ, "AIRLOCK_PRESET_NUM_GPUS")
    own = config.launch.num_ranks
    in_order = (
        (option, "--num-gpus"),
        (own or None if config_source.startswith("option") else None, "--set launch.num_ranks"),
        (_number(environ, "NUM_GPUS"), f"NUM_GPUS={environ.get('NUM_GPUS', '').strip()}"),
        (own or None if is_environments else None, config_source),
        (preset, "the start script"),
        (own or None, config_source),
    )
    return next(((number, who) for number, who in in_order if number is not None), None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError as error:
        raise UserError(
            f"{name}={text!r} is not a whole number", do=f"{name}=2, or leave it unset"
        ) from error
