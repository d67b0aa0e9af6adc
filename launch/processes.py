"""The processes below this one: none of them is left behind."""

from __future__ import annotations

import os

import psutil


def descendants() -> list[psutil.Process]:
    """Every process below this one, those that became ours as their subreaper included."""
    below: list[psutil.Process] = psutil.Process().children(recursive=True)
    return below


def end_descendants(timeout_s: float = 5.0) -> int:
    """SIGKILL and reap every process below this one; returns how many there were.

    Killing a parent can bring up children that were being forked just then, hence the rounds.
    """
    num_ended = 0
    for _ in range(10):
        left = [process for process in descendants() if process.status() != psutil.STATUS_ZOMBIE]
        if not left:
            break
        num_ended += len(left)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=timeout_s)
    reap_zombies()
    return num_ended


def reap_zombies() -> None:
    """Collect children that have ended, so that none stays as a zombie."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
