"""The line that a run's output has for each event that is worth one."""

from __future__ import annotations

from collections.abc import Callable

from machine.typed import console_program
from rundir.events import Event
from rundir.units import clock_text, loss_text
from state.gpu_use import now_text, warning_of
from state.run_state import RunState


def plain_line(state: RunState, event: Event) -> str | None:
    """Return the line for one event, or None if there is nothing to say."""
    line = _LINES.get((event["kind"], event["name"]))
    return None if line is None else line(state, event)


def _of_log(state: RunState, event: Event) -> str | None:
    """Return a line that a process has logged; a script's ranks are shown by their logs instead."""
    return None if state.of_script and event["rank"] is not None else str(event["text"])


def _of_start(_: RunState, event: Event) -> str | None:
    return f"airlock: starting cold: {event['reason']}" if event["reason"] else None


def _of_plan(_: RunState, event: Event) -> str:
    return (
        f"training {event['num_trainable']:,} of {event['num_parameters']:,} parameters, "
        f"{event['num_train_samples']:,} samples, {event['total_steps']:,} steps"
    )


def _of_steps(state: RunState, event: Event) -> str:
    eta, gpus = state.status.eta_s, now_text(state.gpus.values())
    left = "" if eta is None else f"  eta {clock_text(eta)}"
    return (
        f"step {event['step']}/{state.status.total_steps}  loss {event['loss']:.4f}  "
        f"lr {event['lr']:.2e}  {speed(event['tokens_per_s'], event['mfu'])}"
        f"{f'  {gpus}' if gpus else ''}{left}"
    )


def _of_gpu(state: RunState, event: Event) -> str | None:
    gpu = state.gpus[event["index"]]
    return warning_of(gpu) if gpu.warned_of is event else None


def _of_slow_rank(state: RunState, event: Event) -> str | None:
    return state.stragglers.warning() if state.stragglers.warned_of is event else None


def _of_silent_gpu(_: RunState, event: Event) -> str:
    who = "the NVIDIA driver" if event["index"] is None else f"GPU {event['index']}"
    return (
        f"airlock: {who} does not answer any more: {event['why']}\n"
        "  → sudo dmesg | grep -i -e xid -e nvrm   # what the driver says of it"
    )


def _of_answers(_: RunState, event: Event) -> str:
    right = round(event["accuracy"] * event["num_prompts"])
    return (
        f"step {event['step']}: {right} of {event['num_prompts']} prompts answered exactly, "
        f"similarity {event['similarity']:.2f}"
    )


def _of_evaluation(_: RunState, event: Event, of: str = "held-out") -> str:
    match = event["exact_match"]
    exact = "" if match is None else f"  exact match {match:.1%}"
    return f"{of} after step {event['step']}  loss {loss_text(event['loss'])}{exact}"


def _of_set(state: RunState, event: Event) -> str:
    return _of_evaluation(state, event, of=event["set"])


def _of_bad_loss(_: RunState, event: Event) -> str:
    """Return the line about a loss that is no number, or has jumped."""
    done = {
        "warn": "train.on_bad_loss=warn: it goes on; skip, rollback or stop would not train on it",
        "skip": "the step is skipped",
        "rollback": "back to the last checkpoint, and on without this step",
        "stop": "the run ends",
    }[event["answer"]]
    return f"airlock: {event['text']}\n  → {done}"


def early_stop_line(event: Event) -> str:
    """Return the line about a run that ends early."""
    return (
        f"stopped early after step {event['step']}: the held-out loss has not improved for "
        f"{event['num_evaluations']} evaluations; the best was {loss_text(event['best_loss'])} "
        f"after step {event['best_step']}"
    )


def _of_checkpoint(_: RunState, event: Event) -> str | None:
    return f"checkpoint after step {event['step']} saved" if event["ok"] else None


def _of_trace(_: RunState, event: Event) -> str | None:
    if event["why"]:
        return f"airlock: rank {event['rank']} has no trace: {event['why']}"
    text = f"longest operations of rank 0, {event['file']}:\n{event['table']}"
    return text if event["rank"] == 0 else None


def _of_request(state: RunState, event: Event) -> str | None:
    """Return the line for an answered request; a checkpoint and an evaluation have their own."""
    if event["done"] and event["request"] in ("save", "evaluate"):
        return None
    text = f"airlock: {event['said']}"
    if event["request"] == "pause" and event["done"]:
        text += f"\n  → {console_program()} resume {state.status.run_id}"
    return text


_LINES: dict[tuple[str, str], Callable[[RunState, Event], str | None]] = {
    ("log", "line"): _of_log,
    ("mark", "start"): _of_start,
    ("mark", "train.plan"): _of_plan,
    ("metric", "train"): _of_steps,
    ("metric", "gpu"): _of_gpu,
    ("metric", "train.rank"): _of_slow_rank,
    ("mark", "gpu.silent"): _of_silent_gpu,
    ("metric", "eval"): _of_evaluation,
    ("metric", "evolution"): _of_answers,
    ("metric", "eval.set"): _of_set,
    ("mark", "loss.bad"): _of_bad_loss,
    ("mark", "early_stop"): lambda _, event: early_stop_line(event),
    ("mark", "control"): _of_request,
    ("mark", "trace"): _of_trace,
    ("end", "checkpoint"): _of_checkpoint,
}


def speed(tokens_per_s: float, mfu: float | None) -> str:
    """Return tokens per second, and, if known, the share of the GPUs' peak FLOPS (MFU), as text."""
    return f"{tokens_per_s:,.0f} tokens/s" + ("" if mfu is None else f"  MFU {mfu:.1%}")
