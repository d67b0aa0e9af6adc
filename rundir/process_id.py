"""The identity of a process: a pid may be used again, but not with the same start and boot."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on (proc_pid_stat(5)). Raises OSError."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()  # the name before may hold anything


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks of the kernel's clock since boot.

    None if there is no such process, or only its zombie is left.
    """
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """Return the ID of this boot of the machine; "" where the kernel does not tell."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
