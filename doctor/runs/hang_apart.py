"""Hangs in which one rank waits for something else than the others: what, and for whom."""

from __future__ import annotations

import re
from typing import Any

from doctor.logs.verdict import Verdict
from doctor.runs.flight import differing
from doctor.runs.hang_seen import CONFIDENT, LIKELY, HungRanks
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
    at = f"It waits for a batch at {seen.line(rank)}.{seen.others(rank)}"
    for row, stack in seen.children(rank):
        if row["state"] in _ENDS:
            return seen.verdict(
                "data-worker-gone",
                f"waits for a DataLoader worker that {_ENDS[row['state']]} (process {row['pid']}): "
                f"{seen.where(rank)}",
                at,
                ranks=late,
                fix="sudo dmesg -T | grep -iE 'oom|killed process'   # who has ended or stopped "
                f"it? kill -CONT {row['pid']} lets a stopped one go on",
                confidence=CONFIDENT,
            )
        if stack is not None and _works(stack):
            return _stuck_worker(seen, late, row, stack, at)
    return None


def _works(stack: Stack) -> bool:
    """Return whether a worker is in the code of the dataset, and not waiting for its orders."""
    return not stack.is_in(_WORKER)


def _stuck_worker(
    seen: HungRanks, late: tuple[int, ...], row: dict[str, Any], stack: Stack, at: str
) -> Verdict:
    code = f" (`{stack.code}`)" if stack.code else ""
    place = f"its DataLoader worker, process {row['pid']}, is at {stack.where}{code}"
    is_tokenizer = any(part in call.file for call in (*stack.above,) for part in _TOKENIZER)
    if row.get("syscall") == "futex" and float(row.get("cpu_share") or 0.0) == 0.0:
        fix = (
            "export TOKENIZERS_PARALLELISM=false   # then start again"
            if is_tokenizer
            else f"{stack.show}   # create the DataLoader before threads and locks are used, or "
            'give it multiprocessing_context="forkserver"'
        )
        return seen.verdict(
            "fork-deadlock",
            f"waits for a worker that waits for a lock: {place}",
            "The worker was forked, so a lock that another thread of the rank held at that moment "
            f"is never released in it. {at}",
            ranks=late,
            fix=fix,
            confidence=LIKELY,
            first=stack,
        )
    return seen.verdict(
        "data-worker-stuck",
        f"waits for data: {place}",
        at,
        ranks=late,
        fix=f"{stack.show}   # what does the dataset wait for there?",
        confidence=LIKELY,
        first=stack,
    )


def _child(seen: HungRanks, late: tuple[int, ...]) -> Verdict | None:
    """Judge a main thread that waits for a process of its own."""
    rank = late[0]
    stack, rows = seen.stacks[rank], seen.children(rank)
    ended = [row for row, _ in rows if row["state"] in _ENDS]
    at = f"It is at {seen.line(rank)}.{seen.others(rank)}"
    if stack.is_in(*_CHANNELS) and ended:
        row = ended[0]
        return seen.verdict(
            "child-gone",
            f"waits for an answer of a process that {_ENDS[row['state']]} (process {row['pid']}): "
            f"{seen.where(rank)}",
            at,
            ranks=late,
            fix=seen.show(rank, "give get() a timeout, and look whether the process is alive"),
            confidence=LIKELY,
        )
    is_waiting = stack.is_in("/subprocess.py") or seen.ranks[rank].get("syscall") in (
        "wait4",
        "waitid",
    )
    if is_waiting and rows:
        row = rows[0][0]
        what = f"`{row['command']}`" if row["command"] else "a process of its own"
        return seen.verdict(
            "rank-behind",
            f"keeps the others waiting: {seen.where(rank)}, and waits for {what} "
            f"(process {row['pid']}) to end",
            at,
            ranks=late,
            fix=seen.show(rank, "why does that program not end? Give it a timeout"),
            confidence=LIKELY,
        )
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
    return seen.verdict(
        "lock-deadlock" if threads else "rank-behind",
        f"waits for a lock: {seen.where(rank)}{elsewhere}",
        f"Its main thread is at {seen.line(rank)}.{seen.others(rank)}",
        ranks=late,
        fix=seen.show(rank, "which thread holds it? Take locks in the same order in all threads"),
        confidence=LIKELY,
    )


def _store(seen: HungRanks, late: tuple[int, ...]) -> Verdict | None:
    """Judge a main thread that waits for a key of the store that ranks share."""
    rank = late[0]
    if not _STORE.search(seen.stacks[rank].code) or seen.is_busy(rank):
        return None
    return seen.verdict(
        "store-key-missing",
        f"waits for a key of the store that nobody sets: {seen.where(rank)}",
        f"It is at {seen.line(rank)}.{seen.others(rank)}",
        ranks=late,
        fix=seen.show(rank, "which rank has to set this key, and before what?"),
        confidence=LIKELY,
    )


def _elsewhere(seen: HungRanks, late: tuple[int, ...]) -> Verdict:
    rank = late[0]
    difference = differing(seen.records)
    missed = (
        difference
        if difference and difference.instead is None and rank in difference.ranks
        else None
    )
    entered = f"did not enter {missed.called.name} #{missed.called.number}, and " if missed else ""
    all_late = f" Rank {', '.join(map(str, late))} are in none." if len(late) > 1 else ""
    return seen.verdict(
        "rank-behind",
        f"{entered}keeps the others waiting: {seen.where(rank)}",
        f"{_doing(seen, rank)}.{seen.others(rank)}{all_late}",
        ranks=late,
        fix=seen.show(
            rank,
            "what does it wait for that the other ranks do "
            "not? A file, a lock, a network, more data than others have, a branch of one rank only",
        ),
        confidence=CONFIDENT if missed else LIKELY,
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
