"""The verdict on a job that was looked at from outside: who waits for whom, and at which line."""

from __future__ import annotations

from doctor.logs.verdict import Verdict
from doctor.outside.case import Case
from doctor.outside.observe import ObservedProcess, observe, workers_of
from doctor.outside.running_job import find_job

_LIKELY, _PROBABLE, _UNSURE = 0.8, 0.6, 0.4
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


def _others_wait(case: Case, apart: ObservedProcess) -> str:
    waiting = next((rank for rank in case.seen if rank is not apart and rank.waits), None)
    return f"{case.who(waiting)} waits for it at {waiting.where}." if waiting else ""


def _stopped(case: Case) -> Verdict | None:
    rank = next((rank for rank in case.seen if rank.letter in ("T", "t")), None)
    if rank is None:
        return None
    by = "was stopped (SIGSTOP)" if rank.letter == "T" else "is held by a debugger or tracer"
    return case.verdict("stopped", first=rank, by=by, others=_others_wait(case, rank))


def _in_kernel(case: Case) -> Verdict | None:
    rank = next((rank for rank in case.seen if rank.letter == "D"), None)
    if rank is None or rank.moves:
        return None
    place = f" in {rank.waits_in}" if rank.waits_in else ""
    return case.verdict("in_kernel", first=rank, place=place, others=_others_wait(case, rank))


def _gone(case: Case) -> Verdict | None:
    waiting = [rank for rank in case.seen if rank.waits]
    if not case.gone or (case.has_stacks and not waiting):
        return None
    if any(rank.moves for rank in case.seen):
        return None
    has = "has" if len(case.gone) == 1 else "have"
    ranks = f"rank{'s' * (len(case.gone) > 1)} {', '.join(map(str, case.gone))} {has}"
    call = f" in {waiting[0].call}" if waiting and waiting[0].call else ""
    return case.verdict(
        "gone",
        first=waiting[0] if waiting else None,
        confidence=_LIKELY if waiting else _UNSURE,
        ranks=ranks,
        call=call,
        gone=case.gone,
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
        first=case.seen[0],
        confidence=_LIKELY if silent or here < of else _PROBABLE,
        address=address,
        host_port=address.replace(":", " "),
        why=why,
    )


def _behind(case: Case) -> Verdict | None:
    """Judge ranks of which some wait for the others, and some do not."""
    late = [rank for rank in case.seen if not rank.waits]
    waiting = [rank for rank in case.seen if rank.waits and not rank.moves]
    if not case.has_stacks or not late or not waiting:
        return None
    rank, other = late[0], waiting[0]
    if rank.moves and not rank.in_workers:
        return case.verdict("waits_for_busy", first=rank, other=case.who(other))
    if rank.in_workers and (verdict := _workers(case)):
        return verdict
    return case.verdict("behind", first=rank)


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
    return case.verdict("apart", first=few[0], many=many[0], other=case.who(many[0]))


def _workers(case: Case) -> Verdict | None:
    """Judge a rank that waits for its DataLoader's workers."""
    rank = next((rank for rank in case.seen if rank.in_workers and not rank.moves), None)
    if rank is None:
        return None
    workers = workers_of(rank)
    dead = next((worker for worker in workers if worker.letter in ("Z", "T", "t", "D")), None)
    at = "; ".join(f"worker pid {each.pid} is at {each.where}" for each in workers[:_MOST_SHOWN])
    at = f"{at}." if at else "It has no worker left."
    if dead:
        state = {"Z": "has ended", "D": "is stuck in the kernel"}.get(dead.letter, "is stopped")
        return case.verdict("dead_worker", first=rank, state=state, dead=dead, workers=at)
    confidence = _PROBABLE if workers else _LIKELY
    return case.verdict("workers", first=rank, confidence=confidence, workers=at)


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
    return case.verdict("odd_one_out", first=few[0])


def _still(case: Case) -> Verdict | None:
    """Judge a job in which nothing moves."""
    if not case.seen or any(rank.moves for rank in case.seen):
        return None
    rank = case.seen[0]
    together = all(each.waits for each in case.seen) and case.has_stacks
    if together and not case.job.is_alone:
        return case.verdict("together", first=rank, call=rank.call or "a synchronisation")
    subject = f"{case.who(rank)} makes" if len(case.seen) == 1 else "no rank makes"
    progress = "no progress" if len(case.seen) == 1 else "progress"
    confidence = _UNSURE if together or not case.has_stacks else _PROBABLE
    return case.verdict("still", first=rank, confidence=confidence, subject=f"{subject} {progress}")


def _goes_on(case: Case) -> Verdict:
    missing = f"; rank {', '.join(map(str, case.gone))} has ended" if case.gone else ""
    subject = f"process {case.seen[0].pid}" if case.job.is_alone and case.seen else "the job"
    title = f"{subject} moves{missing}" if case.seen else f"the job has ended{missing}"
    return case.verdict(
        "goes_on", confidence=_LIKELY if case.has_stacks else _PROBABLE, title=title
    )
