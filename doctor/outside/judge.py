"""The verdict on a job that was looked at from outside: who waits for whom, and at which line."""

from __future__ import annotations

from doctor.logs.verdict import Verdict
from doctor.outside.case import Case
from doctor.outside.observe import ObservedProcess, observe, workers_of
from doctor.outside.running_job import find_job

_CONFIDENT, _LIKELY, _PROBABLE, _UNSURE = 0.95, 0.8, 0.6, 0.4
_MOST_SHOWN = 4


def of_process(pid: int) -> Verdict:
    """Return the verdict on the job that the process `pid` belongs to. Raises UserError.

    Takes three seconds, and up to eleven if ranks that use GPUs stand still. The kernel's word
    comes first, then ranks that are not there, and only then stacks.
    """
    job = find_job(pid)
    case = Case(job, observe(job), pid)
    deciders = (
        _stopped,
        _in_kernel,
        _rendezvous,
        _gone,
        _behind,
        _apart,
        _workers,
        _odd_one_out,
        _still,
    )
    for decide in deciders:
        if verdict := decide(case):
            return verdict
    return _goes_on(case)


def _show(seen: ObservedProcess, question: str) -> str:
    if seen.stack is None:
        return f"sudo cat /proc/{seen.pid}/stack   # {question}"
    return f"{seen.stack.show}   # {question}"


def _others_wait(case: Case, apart: ObservedProcess) -> str:
    waiting = next((rank for rank in case.seen if rank is not apart and rank.waits), None)
    return f"{case.who(waiting)} waits for it at {waiting.where}." if waiting else ""


def _stopped(case: Case) -> Verdict | None:
    rank = next((rank for rank in case.seen if rank.letter in ("T", "t")), None)
    if rank is None:
        return None
    by = "was stopped (SIGSTOP)" if rank.letter == "T" else "is held by a debugger or tracer"
    return case.verdict(
        "rank-stopped",
        f"{case.who(rank)} {by}",
        f"The kernel has process {rank.pid} in state {rank.letter}: it does not run at all. "
        + _others_wait(case, rank),
        first=rank,
        fix=f"kill -CONT {rank.pid}   # and find who sends SIGSTOP: a person (Ctrl-Z), a batch "
        "system that suspends jobs, a checkpointing tool",
        confidence=_CONFIDENT,
        is_proven=True,
    )


def _in_kernel(case: Case) -> Verdict | None:
    rank = next((rank for rank in case.seen if rank.letter == "D"), None)
    if rank is None or rank.moves:
        return None
    where = f" in {rank.waits_in}" if rank.waits_in else ""
    return case.verdict(
        "rank-in-kernel",
        f"{case.who(rank)} waits in the kernel{where}, and cannot be interrupted",
        _others_wait(case, rank),
        first=rank,
        fix="sudo dmesg -T | tail -50   # a disk, a network mount or a driver does not answer",
        confidence=_LIKELY,
    )


def _gone(case: Case) -> Verdict | None:
    waiting = [rank for rank in case.seen if rank.waits]
    if not case.gone or (case.has_stacks and not waiting):
        return None
    if any(rank.moves for rank in case.seen):
        return None
    ranks = ", ".join(map(str, case.gone))
    has, wait = ("has", "wait") if len(case.gone) == 1 else ("have", "wait")
    verb = f"{has} ended while the others {wait}"
    return case.verdict(
        "rank-gone",
        f"rank{'s' * (len(case.gone) > 1)} {ranks} {verb}"
        + (f" in {waiting[0].call}" if waiting and waiting[0].call else ""),
        "Its process is not there any more. A rank that ends early, with its work done or by an "
        "error that nobody has noticed, never joins the next collective.",
        first=waiting[0] if waiting else None,
        fix=f"./airlock doctor LOG   # of what rank {case.gone[0]} has printed. If there is no "
        "error in it, give every rank the same number of batches: "
        "DistributedSampler(drop_last=True), or torch.distributed.algorithms.join.Join",
        confidence=_LIKELY if waiting else _UNSURE,
    )


def _rendezvous(case: Case) -> Verdict | None:
    """Judge ranks that all wait in init_process_group, or a launcher that waits for other nodes."""
    if not case.seen or not all(rank.meets for rank in case.seen):
        return None
    if any(rank.moves and rank.busy > _PROBABLE for rank in case.seen):
        return None
    address = case.job.address or "the rendezvous"
    silent = next((rank for rank in case.seen if rank.connecting), None)
    here, of = len(case.seen), case.job.world_size
    if silent:
        address = silent.connecting[0]
        why = f"Nothing answers at {address}: {case.who(silent)} is still connecting."
    elif here < of:
        why = f"{here} of {of} ranks are there; {address} is where they meet."
    else:
        why = f"All {of} ranks of this machine are there, and have not met at {address}."
    return case.verdict(
        "rendezvous",
        f"the ranks wait in the rendezvous at {address}",
        why,
        first=case.seen[0],
        fix="start the missing ranks with the same address and world size, or free the way to it: "
        f"nc -vz {address.replace(':', ' ')}   # is anybody there, and no firewall between?",
        confidence=_LIKELY if silent or here < of else _PROBABLE,
    )


def _behind(case: Case) -> Verdict | None:
    """Judge ranks of which some wait for the others, and some do not."""
    late = [rank for rank in case.seen if not rank.waits]
    waiting = [rank for rank in case.seen if rank.waits and not rank.moves]
    if not case.has_stacks or not late or not waiting:
        return None
    rank, other = late[0], waiting[0]
    if rank.moves and not rank.in_workers:
        return case.verdict(
            "running",
            f"{case.who(other)} waits for {case.who(rank)}, which computes at {rank.where}",
            first=rank,
            fix=f"./airlock doctor --pid {case.pid}   # once more, in a minute: if it says the "
            f"same, look at {rank.where}: what does it do there that the others do not?",
            confidence=0.5,
        )
    if rank.in_workers and (verdict := _workers(case)):
        return verdict
    return case.verdict(
        "rank-behind",
        f"{case.who(rank)} keeps the others waiting: it is at {rank.where}",
        first=rank,
        fix=_show(
            rank,
            "what does it wait for that the others do not? A file, a lock, a network, a branch "
            "that only some ranks take",
        ),
        confidence=_LIKELY,
    )


def _apart(case: Case) -> Verdict | None:
    """Judge ranks that all wait, and at different lines."""
    if not case.has_stacks or not all(rank.waits and not rank.moves for rank in case.seen):
        return None
    places: dict[tuple[str, str], list[ObservedProcess]] = {}
    for rank in case.seen:
        places.setdefault((rank.call, rank.where), []).append(rank)
    if len(places) < 2:  # noqa: PLR2004 - at one line they are together
        return None
    few, *_, many = sorted(places.values(), key=len)
    return case.verdict(
        "collective-mismatch",
        f"{case.who(few[0])} is in {few[0].call} at {few[0].where}, {case.who(many[0])} in "
        f"{many[0].call} at {many[0].where}",
        "Ranks must call the same collectives in the same order; these wait for each other.",
        first=few[0],
        fix="give every rank the same number of batches (DistributedSampler(drop_last=True), or "
        "torch.distributed.algorithms.join.Join), and let no branch that only some ranks take "
        "have a collective; TORCH_DISTRIBUTED_DEBUG=DETAIL names both calls",
        confidence=_PROBABLE,
    )


def _workers(case: Case) -> Verdict | None:
    """Judge a rank that waits for its DataLoader's workers."""
    rank = next((rank for rank in case.seen if rank.in_workers and not rank.moves), None)
    if rank is None:
        return None
    workers = workers_of(rank)
    dead = next((worker for worker in workers if worker.letter in ("Z", "T", "t", "D")), None)
    if dead:
        state = {"Z": "has ended", "D": "is stuck in the kernel"}.get(dead.letter, "is stopped")
        title = f"{case.who(rank)} waits for a DataLoader worker that {state} (pid {dead.pid})"
    else:
        title = f"{case.who(rank)} waits for its DataLoader's workers, at {rank.where}"
    at = "; ".join(f"worker pid {each.pid} is at {each.where}" for each in workers[:_MOST_SHOWN])
    return case.verdict(
        "dataloader-hang",
        title,
        f"{at}." if at else "It has no worker left.",
        first=rank,
        fix="num_workers=0   # shows whether the data or the workers are at fault; else "
        "multiprocessing_context='spawn': a lock that was held during the fork is never released",
        confidence=_LIKELY if dead or not workers else _PROBABLE,
    )


def _odd_one_out(case: Case) -> Verdict | None:
    """Judge ranks without stacks: one that waits for something else than all others."""
    if case.has_stacks or any(rank.moves for rank in case.seen):
        return None
    places: dict[str, list[ObservedProcess]] = {}
    for rank in case.seen:
        places.setdefault(rank.waits_in, []).append(rank)
    if len(places) < 2 or "" in places:  # noqa: PLR2004 - in one place they are together
        return None
    if len(case.seen) == 2:  # noqa: PLR2004 - of two, one that waits for a thread waits for a peer
        places = dict(sorted(places.items(), key=lambda item: "futex" in item[0]))
    few = min(places.values(), key=len)
    return case.verdict(
        "rank-behind",
        f"{case.who(few[0])} waits for something else than the others: {few[0].where}",
        first=few[0],
        fix=_show(few[0], "as root: what the kernel does for it"),
        confidence=_UNSURE,
    )


def _still(case: Case) -> Verdict | None:
    """Judge a job in which nothing moves."""
    if not case.seen or any(rank.moves for rank in case.seen):
        return None
    rank = case.seen[0]
    together = all(each.waits for each in case.seen) and case.has_stacks
    if together and not case.job.is_alone:
        title = f"all ranks wait in {rank.call or 'a synchronisation'} at {rank.where}"
        fix = (
            f"./airlock doctor --pid {case.pid}   # once more, in a minute: a long step looks the "
            "same. If it stays: NCCL_DEBUG=INFO, and ./airlock check collectives"
        )
    else:
        subject = case.who(rank) if len(case.seen) == 1 else "no rank"
        verb = "makes no progress" if len(case.seen) == 1 else "makes progress"
        title, fix = f"{subject} {verb}: {rank.where}", _show(rank, "what does it wait for?")
    confidence = _UNSURE if together or not case.has_stacks else _PROBABLE
    return case.verdict("hang", title, first=rank, fix=fix, confidence=confidence)


def _goes_on(case: Case) -> Verdict:
    missing = f"; rank {', '.join(map(str, case.gone))} has ended" if case.gone else ""
    subject = f"process {case.seen[0].pid}" if case.job.is_alone and case.seen else "the job"
    title = f"{subject} moves{missing}" if case.seen else f"the job has ended{missing}"
    return case.verdict(
        "running",
        title,
        fix=f"no action needed; ./airlock doctor --pid {case.pid} once more if it seems stuck",
        confidence=_LIKELY if case.has_stacks else _PROBABLE,
    )
