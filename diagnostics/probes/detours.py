"""The ways round a broken path between GPUs: which of NCCL's variables makes an exchange succeed.

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html: PCIe ACS and IOMMUs
redirect what GPUs send each other, so that it comes late, wrong or never, though the driver says
that P2P works; and a small or private /dev/shm breaks the path through the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from launch.config.request import RUN, Request
from machine.gpus.devices import Gpu
from rundir.finding import Finding

_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


@dataclass(frozen=True, slots=True)
class Detour:
    """Variables that make NCCL avoid a path, what that path is, and what usually breaks it."""

    names: tuple[str, ...]
    path: str
    mend: str

    @property
    def settings(self) -> dict[str, str]:
        """The variables with the value that switches them on."""
        return dict.fromkeys(self.names, "1")

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items())


_P2P = "direct copies between GPUs (P2P)"
_SHM = "the host's shared memory"
_OFF = "PCIe ACS and the IOMMU off in the BIOS"
_LARGER = "a larger /dev/shm, shared by all ranks: docker run --ipc=host"
DETOURS = (
    Detour(("NCCL_P2P_DISABLE",), _P2P, _OFF),
    Detour(("NCCL_SHM_DISABLE",), _SHM, _LARGER),
    Detour(("NCCL_IB_DISABLE",), "InfiniBand", "ibstat, and the adapter's driver"),
    Detour(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), f"{_P2P} and {_SHM}", f"{_OFF}; {_LARGER}"),
)


def find_detour(works_with: Callable[[Detour], bool], environ: Mapping[str, str]) -> Detour | None:
    """Return the first detour with which the exchange works; those already taken are left out."""
    for detour in DETOURS:
        if not detour.settings.items() <= environ.items() and works_with(detour):
            return detour
    return None


def with_detour(finding: Finding, detour: Detour, request: Request, gpus: Sequence[Gpu]) -> Finding:
    """Return a failed finding with the way round it; `gpus` are those of the ranks, in order."""
    return replace(
        finding,
        text=f"{_who(finding.check, gpus)} do not reach each other by {detour.path}; with {detour} "
        f"they do. Without: {finding.text}",
        do=f"{detour} {request.command(RUN, {})}   # slower; better: {detour.mend} ({_GUIDE})",
    )


def without_detour(finding: Finding, tried: Sequence[Detour]) -> Finding:
    """Return a failed finding with what has been tried in vain."""
    if not tried:
        return finding
    names = ", ".join(map(str, tried))
    return replace(finding, text=f"also with {names}: {finding.text}")


def _who(check: str, gpus: Sequence[Gpu]) -> str:
    """Name the two GPUs of a pair's exchange; of any other, nobody knows which two it is."""
    kind, _, numbers = check.partition(" ")
    if kind != "pair":
        return "the GPUs" if gpus else "the ranks"
    first, other = map(int, numbers.split("-"))
    if not gpus:
        return f"ranks {first} and {other}"
    return f"GPUs {gpus[first].index} and {gpus[other].index}"
