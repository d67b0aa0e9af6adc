"""The final report of a run: the summary, or the failure with its traceback last."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from launch.run.supervise.summary import summary_lines
from machine.processes.signals import Signals
from machine.typed import typed_run
from rundir.errors import ExitCode
from rundir.files.reading import GrowingFile
from rundir.paths import RunDir, shown
from state import out_of_memory
from state.blame import Blame, Failure
from state.run_state import RunState
from state.try_next import tries_lines

_NUM_LOG_LINES = 30
_TAIL_BYTES = 64 * 1024


def exit_code(state: RunState, agent_code: int, signals: Signals) -> ExitCode:
    """Return the exit code of the run.

    With our trainer, only a rank's own word counts as done, not merely an exit with 0; and a run
    that failed while it was to save and stop has failed, as nothing says that it saved. With a
    script there are only exit codes.
    """
    result = state.result.get("result") if agent_code == 0 else None
    if result == "done" or (state.of_script and agent_code == 0):
        return ExitCode.DONE
    is_failure = state.has_own_failure and not state.of_script
    was_stopped = result == "stopped" or (signals.stop_asked and not is_failure)
    if was_stopped or signals.end_now:
        saved = state.last_checkpoint is not None
        return ExitCode.INTERRUPTED_SAVED if saved else ExitCode.INTERRUPTED_UNSAVED
    root = state.root_failure()
    if root is None:  # the agent itself ended
        return ExitCode.OUT_OF_MEMORY if state.oom_kill else ExitCode.RANK_FAILED
    return ExitCode(root.exit_code)


def report(console: Console, run: RunDir, state: RunState, code: ExitCode) -> None:
    """Print how the run ended."""
    if code is ExitCode.DONE:
        console.out("\n".join(summary_lines(run, state)))
    elif code in (ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED):
        _interrupted(console, run, state)
    else:
        _failure(console, run, state)


def _interrupted(console: Console, run: RunDir, state: RunState) -> None:
    if state.last_checkpoint is None:
        saved = "what the script has saved is its own" if state.of_script else "nothing was saved"
        console.out(f"\ninterrupted; {saved}. What there is: {shown(run.path)}")
        console.out(f"  → {typed_run(run, state.status.profile).again()}   # anew")
        return
    console.out(f"\ninterrupted; the checkpoint after step {state.last_checkpoint} is saved")
    console.out(_resume_line(run, state))


def _failure(console: Console, run: RunDir, state: RunState) -> None:
    """Print which rank failed, why, and what to do; the most telling part comes last."""
    from launch.run.supervise.ask_doctor import advice, examined
    from launch.run.supervise.incident import incident_lines

    root, seen = state.root_failure(), examined(run, state)
    kept = incident_lines(run, state, None if isinstance(seen, str) else seen)
    advised, incident = _indented(advice(seen, state)), _indented(kept)
    if root is None:
        _agent_failure(console, run, state, [*advised, f"  log {shown(run.agent_log)}", *incident])
        return
    is_hang = root.exit_code == ExitCode.HANG
    log = run.rank_log(root.rank or 0, state.status.attempt)
    if root.rank is None and not is_hang:
        log = run.zygote_log
    lines = [*_what_failed(root, state), *advised, f"  log {shown(log)}", *incident]
    if state.last_checkpoint is not None:
        lines += [f"  last checkpoint: step {state.last_checkpoint}", _resume_line(run, state)]
    lines += _indented(tries_lines(run, state))
    text = "\n".join(lines)
    if root.traceback:
        console.out(f"\n{text}\n\n{root.traceback}")
    elif state.of_script or is_hang:  # its output is on the screen already, or says nothing new
        console.out(f"\n{text}")
    else:
        # A killed rank has no last words: what killed it matters more than its log.
        console.out(f"\n{_tail(log)}\n\n{text}")


def _what_failed(root: Failure, state: RunState) -> list[str]:
    is_hang = root.exit_code == ExitCode.HANG
    has = "hung" if is_hang else "failed"
    lines = [f"airlock: the run {has}: {root.summary}", *_indented(root.notes)]
    if state.restarts:
        lines.append(f"  restarted before: {'; '.join(state.restarts)}")
    if state.is_final:
        lines.append("  not restarted: it would end the same way, until data or settings change")
    if not is_hang:
        lines += _indented(others_of(root, state.failures))
    if root.title == "killed by SIGKILL":
        lines.append("  by another process: the kernel's OOM killer counted no kill at that time")
    return lines


def others_of(root: Failure, failures: Iterable[Failure]) -> list[str]:
    """Return lines about the other ranks: those that failed by themselves, and how; the rest."""
    others = sorted(
        (failure for failure in failures if failure.rank is not None and failure.rank != root.rank),
        key=lambda failure: failure.rank or 0,
    )
    alike: dict[str, list[str]] = {}  # ranks by how they failed
    for rank_ in others:
        if rank_.blame <= Blame.LIKELY:
            how = rank_.summary.removeprefix(f"{rank_.who} ")
            alike.setdefault(how, []).append(str(rank_.rank))
    same = alike.pop(root.summary.removeprefix(f"{root.who} "), [])
    lines = [f"also failed, in the same way: rank {', '.join(same)}"] if same else []
    lines += [f"also failed: rank {', '.join(ranks)} {how}" for how, ranks in alike.items()]
    rest = [str(other.rank) for other in others if other.blame > Blame.LIKELY]
    return [*lines, *([f"and, as a consequence, rank {', '.join(rest)}"] if rest else [])]


def _agent_failure(console: Console, run: RunDir, state: RunState, more: list[str]) -> None:
    """Report an agent that has ended although no rank failed."""
    lines = ["airlock: the run failed: torch's agent ended before its ranks did"]
    if state.oom_kill:
        title, notes = out_of_memory.by_kernel(state.oom_kill)
        lines += [f"  it was {title}", *_indented(notes)]
    console.out("\n".join(["", _tail(run.agent_log), "", *lines, *more]))


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _resume_line(run: RunDir, state: RunState) -> str:
    typed = typed_run(run, state.status.profile)
    return f"  → {state.resume_command or typed.resumed(run)}"


def _tail(log: Path) -> str:
    """Return the last lines of a log, or a note that there are none."""
    data = GrowingFile(log, from_end_bytes=_TAIL_BYTES).new_bytes()
    lines = data.decode(errors="replace").splitlines()
    return "\n".join(lines[-_NUM_LOG_LINES:]) or "(the log is empty)"
