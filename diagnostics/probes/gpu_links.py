"""The interconnects of the GPUs: NVLink, PCIe, or only through the host's memory.

Names are those of `nvidia-smi topo -m`: NV4 stands for four NVLinks; PIX, PXB, PHB, NODE and SYS
for what data cross on PCIe, from a single switch to the link between two CPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from machine.gpus.nvml import answer_or, open_driver
from rundir.finding import Finding

Pair = tuple[int, int]
_NOT_KNOWN = -1
_P2P_READ = 0  # nvml.h; pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple, by a comma too many (13.615)
_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The GPUs of a machine: the state of each one's NVLinks, and the connection of each pair."""

    nvlinks: Mapping[int, Sequence[bool]]  # by GPU: whether each of its links is up
    joined_by: Mapping[Pair, str]
    without_p2p: Sequence[Pair]  # those that cannot read each other's memory


def check_links() -> list[Finding]:
    """Return one finding if there are several GPUs."""
    import pynvml

    try:
        open_driver()
        handles = dict(_handles(pynvml.nvmlDeviceGetCount()))
        return [judge(_links(handles))] if len(handles) > 1 else []
    except pynvml.NVMLError:  # preflight reports a failing driver
        return []


def judge(links: Links) -> Finding:
    """Warn of NVLinks that are down while others are up, and of pairs without P2P."""
    down = {
        gpu: [number for number, is_up in enumerate(state) if not is_up]
        for gpu, state in links.nvlinks.items()
        if any(state) and not all(state)
    }
    down |= {
        gpu: list(range(len(state)))
        for gpu, state in links.nvlinks.items()
        if state and not any(state) and any(map(any, links.nvlinks.values()))
    }
    warnings = [
        f"of GPU {gpu} NVLink {', '.join(map(str, numbers))} is down"
        for gpu, numbers in sorted(down.items())
    ]
    do = "nvidia-smi nvlink --status; sudo dmesg | grep -i -e nvlink -e xid; the fabric manager?"
    if links.without_p2p:
        pairs = ", ".join(f"{first}-{other}" for first, other in links.without_p2p)
        warnings.append(f"GPUs {pairs} cannot read each other's memory: data pass the host's")
        do = do if down else "nvidia-smi topo -p2p r   # an IOMMU or PCIe ACS may forbid it"
    by_kind: dict[str, list[str]] = {}
    for (first, other), kind in sorted(links.joined_by.items()):
        by_kind.setdefault(kind, []).append(f"{first}-{other}")
    return Finding(
        check="gpu links",
        ok=True,
        warning="; ".join(warnings),
        do=do if warnings else "",
        text="; ".join(f"{kind} {' '.join(pairs)}" for kind, pairs in by_kind.items()),
        figures={
            "joined_by": [
                f"{first}-{other} {kind}" for (first, other), kind in links.joined_by.items()
            ]
        },
    )


def _handles(count: int) -> list[tuple[int, Any]]:
    import pynvml

    handles = []
    for index in range(count):
        with contextlib.suppress(pynvml.NVMLError):  # lost
            handles.append((index, pynvml.nvmlDeviceGetHandleByIndex(index)))
    return handles


def _links(handles: Mapping[int, Any]) -> Links:
    import pynvml as nv

    nvlinks = {index: _nvlinks(handle) for index, handle in handles.items()}
    places = {index: nv.nvmlDeviceGetPciInfo(handle).busId for index, handle in handles.items()}
    joined_by, without_p2p = {}, []
    for first, other in combinations(handles, 2):
        pair = handles[first], handles[other]
        level = answer_or(_NOT_KNOWN, nv.nvmlDeviceGetTopologyCommonAncestor, *pair)
        ends = _ends(handles[first], nvlinks[first])
        # A link that ends at no GPU ends at a switch, through which every GPU reaches every other.
        num = ends.count(places[other]) or sum(end not in places.values() for end in ends)
        joined_by[first, other] = f"NV{num}" if num else _LEVELS.get(level, "not known")
        status = answer_or(nv.NVML_P2P_STATUS_OK, nv.nvmlDeviceGetP2PStatus, *pair, _P2P_READ)
        if status != nv.NVML_P2P_STATUS_OK:
            without_p2p.append((first, other))
    return Links(nvlinks=nvlinks, joined_by=joined_by, without_p2p=without_p2p)


def _nvlinks(handle: Any) -> list[bool]:
    """Return the state of every NVLink of the GPU; nothing if it has none."""
    import pynvml as nv

    states: list[bool] = []
    for number in range(nv.NVML_NVLINK_MAX_LINKS):
        state = answer_or(None, nv.nvmlDeviceGetNvLinkState, handle, number)
        if state is None:
            break
        states.append(bool(state))
    return states


def _ends(handle: Any, states: Sequence[bool]) -> list[str]:
    """Return the PCI addresses at the far ends of the NVLinks that are up."""
    import pynvml as nv

    numbers = (number for number, is_up in enumerate(states) if is_up)
    nothing: Any = None
    ends = (answer_or(nothing, nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, n) for n in numbers)
    return [end.busId for end in ends if end is not None]
