"""The peak memory of a process and its descendants, sampled while they live."""

from __future__ import annotations

import os
import subprocess
import sys

from machine.memory.process_memory import Peaks, high_water
from rundir.units import MIB

ALLOCATE = """
import mmap, sys
reserved = mmap.mmap(-1, 512 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
block = bytearray(b"x") * (64 * 2**20)
del block
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_childs_peaks_are_known_after_it_has_ended() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    peaks = Peaks(os.getpid())
    peaks.look()
    child.communicate("")
    peaks.look()
    assert peaks.rss_bytes >= 64 * MIB  # it had returned them by the time we looked
    assert peaks.vm_bytes >= 512 * MIB
    assert high_water(child.pid) == {}
    of_gone = Peaks(child.pid)
    of_gone.look()
    assert (of_gone.rss_text, of_gone.vm_text) == ("-", "-")
