"""A plan for people: tables, a verdict in a line, and what to type instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from launch.plan.catalogue import COLUMNS
from launch.plan.fit import Fit, Need, context_need
from launch.plan.instead import Instead
from launch.plan.plan import Plan
from rundir.units import GIB, MIB, size_text

_PARTS = (
    ("weights", "weights_bytes"),
    ("gradients", "gradients_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("DDP buckets", "ddp_bytes"),
    ("activations", "activations_bytes"),
    ("logits", "logits_bytes"),
)
_WAYS = {"master": "float32 copies", "stochastic": "stochastic rounding"}
_PHASES = {
    "imports": "imports",
    "model": "the model is built",
    "ranks up": "all ranks up",
    "training": "training",
    "saving": "checkpoint, export",
}


def show_plan(console: Console, plan: Plan) -> None:
    """Print the tables of a plan, and its verdict."""
    footprint, launch, weights = plan.footprint, plan.config.launch, plan.weights
    what = f"{footprint.num_parameters:,} parameters, {footprint.num_trainable:,} trained"
    console.out(f"{plan.config.profile}: {what}; {_ranks(plan)}\n")
    console.print(_rank_table(plan))
    for line in (*recomputed_lines(plan), *roofline_lines(plan)):
        console.out(f"\n{line}")
    if plan.updates:
        console.out("\nweights in bfloat16 may be updated in these ways:")
        console.print(_updates_table(plan))
    if plan.target.device == "cuda" and plan.target.gpu is None:
        console.out("\nno GPU here, and none named (--gpu H100-80G); on one of:")
        console.print(_catalogue_table(plan))
    how = f"start {launch.start}, load {weights.load} ({weights.note})"
    console.out(f"\nhost, all processes; {how}")
    console.print(_host_table(plan))
    console.out("\n".join(["", *verdict_lines(plan)]))


def show_instead(console: Console, alternatives: Sequence[Instead]) -> None:
    """Print what fits instead, the cheapest first."""
    lines = [f"  {alternative.command}   # {alternative.what}" for alternative in alternatives]
    head = "what would fit, the cheapest first:"
    if not lines:
        head = "nothing that Airlock knows to change makes it fit"
    console.out("\n".join([head, *lines]))


def _rank_table(plan: Plan) -> Table:
    footprint, on_gpu = plan.footprint, plan.target.device == "cuda"
    table = _table("a rank", "memory")
    for name, key in _PARTS:
        table.add_row(name, size_text(getattr(footprint, key)))
    if on_gpu:
        context = context_need(plan.target.num_ranks, plan.target.gpu)
        table.add_row("context, NCCL", f"about {span(context)}")
    total = span(plan.gpu_need) if on_gpu else size_text(footprint.peak_bytes)
    table.add_row(f"together, in {footprint.peak_moment}", total)
    if gpu := plan.target.gpu:
        table.add_row(gpu.name, size_text(gpu.memory_bytes))
    return table


def _updates_table(plan: Plan) -> Table:
    on_gpu = plan.target.device == "cuda"
    table = _table("train.bf16_updates", "a rank needs", "fits", "")
    for update in plan.updates:
        need = span(update.need) if on_gpu else size_text(update.peak_bytes)
        taken = "taken" if update.is_taken else ""
        table.add_row(f"{update.way}: {_WAYS[update.way]}", need, update.verdict or "", taken)
    return table


def updates_lines(plan: Plan) -> list[str]:
    """Return a line about how weights in bfloat16 are updated; none if there was no choice."""
    needs = [f"{span(update.need)} with {_WAYS[update.way]}" for update in plan.updates]
    return [
        f"weights in bfloat16 are updated by {_WAYS[update.way]} "
        f"(train.bf16_updates={update.way}): a rank needs {', '.join(needs)}"
        for update in plan.updates
        if update.is_taken
    ]


def recomputed_lines(plan: Plan) -> list[str]:
    """Return a line about the blocks that are recomputed in backward; none if that is not known."""
    num, num_blocks = plan.num_recomputed, plan.footprint.num_blocks
    if num is None or not num_blocks:
        return []
    return [f"{num} of {num_blocks} blocks are recomputed in backward"]


def roofline_lines(plan: Plan) -> list[str]:
    """Return a line about the least time of a step; none if that is not known."""
    if (roofline := plan.roofline) is None:
        return []
    step = f"{roofline.step_s:.3g} s, {roofline.tokens_per_s:,.0f} tokens/s a GPU"
    return [f"a step of full rows takes at least {step} (an estimate, by the GPU's roofline)"]


def _catalogue_table(plan: Plan) -> Table:
    table = _table(*(kind.name for kind in COLUMNS))
    words = {Fit.FITS: "fits", Fit.UNCERTAIN: "perhaps", Fit.DOES_NOT_FIT: "no"}
    table.add_row(*(words[plan.on_gpu(kind)] for kind in COLUMNS))
    return table


def _host_table(plan: Plan) -> Table:
    table = _table("phase", "memory", "mapped files")
    for phase in plan.phases:
        mapped = size_text(phase.mapped_bytes) if phase.mapped_bytes else ""
        table.add_row(_PHASES[phase.name], size_text(phase.anonymous_bytes), mapped)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def verdict_lines(plan: Plan) -> list[str]:
    """Return a line for each limit: the verdict, what is needed, and what is left."""
    lines = []
    if (gpu := plan.target.gpu) and (verdict := plan.gpu_verdict):
        lines.append(_line(verdict, "a rank", plan.gpu_need, gpu.memory_bytes, gpu.name))
    now = plan.host.now
    where = "available on this machine" if now.where == "the host" else f"available in {now.where}"
    line = _line(plan.host_verdict, "the host", plan.host_need, now.available_bytes, where)
    return [*lines, line if plan.target.is_here else f"were it this machine: {line}"]


def _line(verdict: Fit, who: str, need: Need, limit_bytes: int, where: str) -> str:
    text = f"{verdict}: {who} needs {span(need)}, of {size_text(limit_bytes)} ({where})"
    if verdict is Fit.FITS:
        return f"{text}: {size_text(limit_bytes - need.most_bytes)} to spare"
    if verdict is Fit.DOES_NOT_FIT:
        return f"{text}: {size_text(need.least_bytes - limit_bytes)} too much"
    return f"{text}: too close to tell"


def _ranks(plan: Plan) -> str:
    num, target = plan.target.num_ranks, plan.target
    return f"{num} rank{'s' if num > 1 else ''} on {target.device} ({target.source})"


def span(need: Need) -> str:
    """Return both bounds as text, in the unit of the larger one."""
    unit, name = (GIB, "GiB") if need.most_bytes >= GIB else (MIB, "MiB")
    digits = 1 if unit == GIB else 0
    return f"{need.least_bytes / unit:,.{digits}f} to {need.most_bytes / unit:,.{digits}f} {name}"
