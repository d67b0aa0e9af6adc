"""The interconnects of the GPUs: NVLink, PCIe, or only through the host's memory.

Names are those of `nvidia-smi topo -m`: NV4 stands for four NVLinks; PIX, PXB, PHB, NODE and SYS
for what data cross on PCIe, from a single switch to the link between two CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pynvml as nv

from machine.gpus.nvml import answer_or, handles
from rundir.finding import Finding

Pair = tuple[int, int]
_NOT_KNOWN = -1
_P2P_READ = 0  # nvml.h; pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple, by a comma too many (13.615)
_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def check_links() -> list[Finding]:
    """Return one finding if there are several GPUs."""
    try:
        by_index = dict(handles())
        return [_judge_links(by_index)] if len(by_index) > 1 else []
    except nv.NVMLError:  # preflight reports a failing driver
        return []


def _judge_links(by_index: Mapping[int, Any]) -> Finding:
    """Warn of NVLinks that are down while others are up, and of pairs without P2P."""
    nvlinks = {index: _nvlinks(handle) for index, handle in by_index.items()}
    joined_by, without_p2p = _joined(by_index, nvlinks)
    has_links_up = any(map(any, nvlinks.values()))
    down = {
        gpu: [number for number, is_up in enumerate(states) if not is_up]
        for gpu, states in nvlinks.items()
        if has_links_up and not all(states)
    }
    warnings = [
        f"of GPU {gpu} NVLink {', '.join(map(str, numbers))} is down"
        for gpu, numbers in sorted(down.items())
    ]
    do = "nvidia-smi nvlink --status; sudo dmesg | grep -i -e nvlink -e xid; the fabric manager?"
    if without_p2p:
        pairs = ", ".join(f"{first}-{other}" for first, other in without_p2p)
        warnings.append(f"GPUs {pairs} cannot read each other's memory: data pass the host's")
        do = do if down else "nvidia-smi topo -p2p r   # an IOMMU or PCIe ACS may forbid it"
    by_kind: dict[str, list[str]] = {}
    for (first, other), kind in sorted(joined_by.items()):
        by_kind.setdefault(kind, []).append(f"{first}-{other}")
    return Finding(
        check="gpu links",
        ok=True,
        warning="; ".join(warnings),
        do=do if warnings else "",
        text="; ".join(f"{kind} {' '.join(pairs)}" for kind, pairs in by_kind.items()),
        figures={
            "joined_by": [f"{first}-{other} {kind}" for (first, other), kind in joined_by.items()]
        },
    )


def _joined(
    by_index: Mapping[int, Any], nvlinks: Mapping[int, Sequence[bool]]
) -> tuple[dict[Pair, str], list[Pair]]:
    """Return what joins each pair, and the pairs that cannot read each other's memory."""
    places = {index: nv.nvmlDeviceGetPciInfo(handle).busId for index, handle in by_index.items()}
    joined_by: dict[Pair, str] = {}
    without_p2p: list[Pair] = []
    for first, other in combinations(by_index, 2):
        pair = by_index[first], by_index[other]
        level = answer_or(_NOT_KNOWN, nv.nvmlDeviceGetTopologyCommonAncestor, *pair)
        ends = _ends(by_index[first], nvlinks[first])
        # A link that ends at no GPU ends at a switch, through which every GPU reaches every other.
        num = ends.count(places[other]) or sum(end not in places.values() for end in ends)
        joined_by[first, other] = f"NV{num}" if num else _LEVELS.get(level, "not known")
        status = answer_or(nv.NVML_P2P_STATUS_OK, nv.nvmlDeviceGetP2PStatus, *pair, _P2P_READ)
        if status != nv.NVML_P2P_STATUS_OK:
            without_p2p.append((first, other))
    return joined_by, without_p2p


def _nvlinks(handle: Any) -> list[bool]:
    """Return the state of every NVLink of the GPU; nothing if it has none."""
    states: list[bool] = []
    for number in range(nv.NVML_NVLINK_MAX_LINKS):
        state = answer_or(None, nv.nvmlDeviceGetNvLinkState, handle, number)
        if state is None:
            break
        states.append(bool(state))
    return states


def _ends(handle: Any, states: Sequence[bool]) -> list[str]:
    """Return the PCI addresses at the far ends of the NVLinks that are up."""
    numbers = (number for number, is_up in enumerate(states) if is_up)
    nothing: Any = None
    ends = (answer_or(nothing, nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, n) for n in numbers)
    return [end.busId for end in ends if end is not None]
