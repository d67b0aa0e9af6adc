"""Hangs in which one rank waits for something else than the others: what, and for whom."""

from __future__ import annotations

import re
from typing import Any

from doctor.logs.verdict import Verdict
from doctor.runs.flight import differing
from doctor.runs.hang_seen import HungRanks
from doctor.runs.rank_stacks import Stack

_DATA = "torch/utils/data/dataloader.py"
_WORKER = "torch/utils/data/_utils/worker.py"
_CHANNELS = (
    "multiprocessing/queues.py",
    "multiprocessing/connection.py",
    "multiprocessing/pool.py",
)
_LOCKS = ("/threading.py", "multiprocessing/synchronize.py", "/queue.py", "concurrent/futures/")
_LOCKED = re.compile(r"\.acquire\(|^with .*(lock|mutex|sem|cond)|\.join\(", re.IGNORECASE)
_STORE = re.compile(r"store\S*\.(get|wait)\(|_store\(\)\.(get|wait)\(", re.IGNORECASE)
_TOKENIZER = ("/tokenizers/", "transformers/tokenization")
_ENDS = {"Z": "has ended", "T": "is stopped (SIGSTOP)", "t": "is held by a debugger"}


def apart(seen: HungRanks) -> Verdict | None:
    """Judge a run in which some ranks are in no collective, and others wait for them there."""
    late = tuple(rank for rank, stack in seen.stacks.items() if not stack.waits)
    if not late or len(late) == len(seen.stacks):
        return None
    for judge in (_data_worker, _child, _lock, _store):
        if verdict := judge(seen, late):
            return verdict
    return _elsewhere(seen, late)


def _data_worker(seen: HungRanks, late: tuple[int, ...]) -> Verdict | None:
    """Judge a main thread that waits for a batch of a DataLoader's worker."""
    rank = late[0]
    if not seen.stacks[rank].is_in(_DATA):
        return None
    for row, stack in seen.children(rank):
        if ends := _ENDS.get(row["state"]):
            return seen.verdict("data_worker_gone", ranks=late, ends=ends, row=row)
        if stack is not None and _works(stack):
            return _stuck_worker(seen, late, row, stack)
    return None


def _works(stack: Stack) -> bool:
    """Return whether a worker is in the code of the dataset, and not waiting for its orders."""
    return not stack.is_in(_WORKER)


def _stuck_worker(
    seen: HungRanks, late: tuple[int, ...], row: dict[str, Any], stack: Stack
) -> Verdict:
    key, code = "data_worker_stuck", f" (`{stack.code}`)" if stack.code else ""
    if row.get("syscall") == "futex" and float(row.get("cpu_share") or 0.0) == 0.0:
        key = "tokenizer_deadlock" if stack.is_in(*_TOKENIZER) else "fork_deadlock"
    place = f"its DataLoader worker, process {row['pid']}, is at {stack.where}{code}"
    return seen.verdict(key, ranks=late, first=stack, stack=stack, place=place)


def _child(seen: HungRanks, late: tuple[int, ...]) -> Verdict | None:
    """Judge a main thread that waits for a process of its own."""
    rank = late[0]
    stack, rows = seen.stacks[rank], seen.children(rank)
    ended = [row for row, _ in rows if row["state"] in _ENDS]
    if stack.is_in(*_CHANNELS) and ended:
        row = ended[0]
        return seen.verdict("child_gone", ranks=late, ends=_ENDS[row["state"]], row=row)
    is_waiting = stack.is_in("/subprocess.py") or seen.ranks[rank].get("syscall") in (
        "wait4",
        "waitid",
    )
    if is_waiting and rows:
        row = rows[0][0]
        what = f"`{row['command']}`" if row["command"] else "a process of its own"
        return seen.verdict("waits_for_child", ranks=late, what=what, row=row)
    return None


def _lock(seen: HungRanks, late: tuple[int, ...]) -> Verdict | None:
    """Judge a main thread that waits for a lock of its own process."""
    rank = late[0]
    stack = seen.stacks[rank]
    is_locked = bool(_LOCKED.search(stack.code)) or stack.is_in(*_LOCKS)
    if seen.ranks[rank].get("syscall", "futex") != "futex" or not is_locked:
        return None
    threads = [
        f"{thread.where}" + (f" (`{thread.code}`)" if thread.code else "")
        for thread in stack.others
    ]
    elsewhere = f", while its other thread is at {'; '.join(threads)}" if threads else ""
    key = "lock_deadlock" if threads else "waits_for_lock"
    return seen.verdict(key, ranks=late, elsewhere=elsewhere)


def _store(seen: HungRanks, late: tuple[int, ...]) -> Verdict | None:
    """Judge a main thread that waits for a key of the store that ranks share."""
    rank = late[0]
    if not _STORE.search(seen.stacks[rank].code) or seen.is_busy(rank):
        return None
    return seen.verdict("store_key_missing", ranks=late)


def _elsewhere(seen: HungRanks, late: tuple[int, ...]) -> Verdict:
    rank = late[0]
    difference = differing(seen.records)
    missed = difference and difference.instead is None and rank in difference.ranks
    all_late = f" Rank {', '.join(map(str, late))} are in none." if len(late) > 1 else ""
    return seen.verdict(
        "did_not_enter" if missed else "keeps_waiting",
        ranks=late,
        called=difference.called if difference else None,
        doing=_doing(seen, rank),
        all_late=all_late,
    )


def _doing(seen: HungRanks, rank: int) -> str:
    """Return what a rank does at its line, as far as the kernel tells."""
    row = seen.ranks[rank]
    file = row.get("syscall_on")
    on = f" from {file}" if file else ""
    what = {
        "nanosleep": "sleeps",
        "read": f"reads{on}",
        "write": f"writes {file or 'a file'}",
        "fsync": f"waits until the disk has {file or 'a file'}",
        "recvfrom": f"waits for data{on}",
        "recvmsg": f"waits for data{on}",
        "accept": "waits for a connection",
        "futex": "waits for another thread of its own",
    }.get(row.get("syscall", ""), "is")
    return f"It {'computes' if seen.is_busy(rank) else what} at {seen.line(rank)}"
