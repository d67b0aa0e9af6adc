"""The table of event names, their fields and writers; docs are generated from it.

An event is one JSON object on one line::

    {"v": 1, "t": unix seconds, "mono": seconds since boot, "node": 0, "attempt": 0,
     "rank": 3 or null, "pid": 123, "kind": "start|end|mark|metric|log|error", "name": ..., fields}

A span is a `start` and an `end` of the same name by the same pid; the `end` has `duration_s`, and
`ok`: false if the span was left by an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

VERSION = 1

Kind = Literal["span", "mark", "metric", "log", "error"]

PHASES = (
    "preparing",  # model and data are being prepared; no rank is running
    "starting",  # ranks start, pass the gate, join their process group
    "training",
    "finishing",  # last evaluation, checkpoint and export
    "stopping",  # a stop was requested
    "done",
    "failed",
    "interrupted",
)
RANK_PHASES = ("spawn", "waiting", "importing", "loading", "ready", "training", "done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec:
    """One row of the table: fields and their meanings; those in `optional` may be null."""

    name: str
    kind: Kind
    writer: str
    meaning: str
    fields: dict[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


_MEMORY = {
    "rss_bytes": "resident memory, file pages included",
    "pss_anon_bytes": "proportional share of anonymous memory: what this process really costs",
    "vms_bytes": "virtual size, what RLIMIT_AS counts",
    "host_available_bytes": "MemAvailable of the host",
    "gpu_used_bytes": "memory in use on this rank's GPU, by anyone; null without CUDA",
}
_AVAILABLE = {
    "available_bytes": "what could still be had",
    "limit_bytes": "of how much in all",
    "where": "the host, or the cgroup with that limit",
}
_GPU_MAY_BE_NULL = frozenset({"gpu_used_bytes"})


def _span(name: str, writer: str, meaning: str, **fields: str) -> EventSpec:
    return EventSpec(name=name, kind="span", writer=writer, meaning=meaning, fields=fields)


def _memory_mark(name: str, meaning: str) -> EventSpec:
    return EventSpec(
        name=name,
        kind="mark",
        writer="rank, zygote",
        meaning=meaning,
        fields=_MEMORY,
        optional=_GPU_MAY_BE_NULL,
    )


EVENTS: tuple[EventSpec, ...] = (
    _span("prepare", "launch, prepare", "model or data made ready", what="model or data"),
    _span("spawn", "agent", "the ranks are started and watched", num_ranks="ranks on this node"),
    _span("zygote.import", "zygote", "heavy imports, once for all ranks", what="the library"),
    _span("zygote.build", "zygote", "the model, built once for all ranks"),
    _span("lock.wait", "rank, zygote", "waiting to be admitted by the gate"),
    _span("lock.hold", "rank, zygote", "inside the gate"),
    _span("import", "rank", "heavy imports"),
    _span("model.load", "rank", "the model is read and put on its device"),
    _span("all_loaded.wait", "rank", "waiting until every rank has left the gate"),
    _span("pg.init", "rank", "init_process_group, and a first barrier"),
    _span("script", "rank", "a script of the user's own runs, from its first line to its end"),
    _span("ddp.wrap", "rank", "the DistributedDataParallel constructor"),
    _span("step", "rank", "reserved: one optimizer step", step="number of the step, from 1"),
    _span("eval", "rank", "one evaluation", step="steps trained before it"),
    _span("checkpoint", "rank 0", "a checkpoint is written", step="steps trained before it"),
    _span("export", "rank 0", "the model is written as a Hugging Face folder"),
    _span("evolution", "rank 0", "a snapshot of answers", step="steps trained before it"),
    _memory_mark("mem.start", "before anything heavy"),
    _memory_mark("mem.post_import", "after the heavy imports"),
    _memory_mark("mem.post_model", "after the model is loaded"),
    EventSpec(
        name="zygote.ready",
        kind="mark",
        writer="zygote",
        meaning="the zygote has finished preparing",
        fields={
            "unfit": "why ranks must not be forked from it; null when they may",
            "num_threads": "threads it has",
            "cuda_touched": "whether CUDA was initialised in it",
        },
        optional=frozenset({"unfit"}),
    ),
    EventSpec(
        name="attempt",
        kind="mark",
        writer="agent",
        meaning="an attempt begins: no rank is left",
    ),
    EventSpec(
        name="start",
        kind="mark",
        writer="agent",
        meaning="how the ranks are started",
        fields={
            "start": "warm, imports or cold",
            "reason": "why it is not as launch.start says; null when it is",
        },
        optional=frozenset({"reason"}),
    ),
    EventSpec(
        name="restart",
        kind="mark",
        writer="launch",
        meaning="all ranks are started again",
        fields={
            "cause": "the failure that ended the attempt before",
            "num_restarts": "restarts so far, this one included",
            "of": "restarts allowed",
        },
    ),
    EventSpec(
        name="admitted",
        kind="mark",
        writer="rank, zygote",
        meaning="let in by the gate",
        fields={
            "admit": "serial, auto or open",
            "num_beside": "processes inside already, of all runs of the node",
            "growth_bytes": "memory it was predicted to take; null if it goes alone",
            "available_bytes": "what the host, or the tightest cgroup, could give",
        },
        optional=frozenset({"growth_bytes"}),
    ),
    EventSpec(
        name="memory.low",
        kind="mark",
        writer="launch",
        meaning="memory is short, but the run holds too little of it for ending one to help",
        fields={"run_held_bytes": "anonymous memory of its processes", **_AVAILABLE},
    ),
    EventSpec(
        name="limits",
        kind="mark",
        writer="rank",
        meaning="resource limits as they now are",
        fields={
            "rlimit_as_bytes": "address-space limit; null is none",
            "rlimit_nofile": "open files; null is no limit",
        },
        optional=frozenset({"rlimit_as_bytes", "rlimit_nofile"}),
    ),
    EventSpec(
        name="numa",
        kind="mark",
        writer="rank, zygote",
        meaning="it has bound itself to a NUMA node (launch.numa)",
        fields={
            "numa_node": "the node of its GPU; null for the zygote, or if it cannot be bound",
            "cores": "its cores, as the kernel lists them: 0-3,8; empty without a node",
            "memory": "preferred: of its node; interleaved: of all ranks' nodes in turn; else why "
            "memory is not placed",
        },
        optional=frozenset({"numa_node"}),
    ),
    EventSpec(
        name="data.streamed",
        kind="mark",
        writer="rank 0",
        meaning="with data.streaming, what has become of the rows of this attempt's steps",
        fields={
            "num_rows": "rows read, over all ranks",
            "num_bad": "of these, rows that could not be used",
            "num_unwanted": "of these, rows that data.only_where has left out",
            "num_too_long": "samples left out for more than data.max_seq_length tokens",
            "num_truncated": "samples cut off there",
            "num_split": "rows that were cut into pieces",
            "num_rewritten": "conversations that became a sample for each answer",
        },
    ),
    EventSpec(
        name="train.plan",
        kind="mark",
        writer="rank 0",
        meaning="what will be trained",
        fields={
            "total_steps": "steps in all",
            "first_step": "steps already done by the run that is resumed, else 0",
            "num_parameters": "parameters of the model",
            "num_trainable": "parameters that get gradients",
            "num_train_samples": "training samples",
            "num_eval_samples": "held-out samples",
        },
    ),
    EventSpec(
        name="train.result",
        kind="mark",
        writer="rank 0",
        meaning="the loop has ended well",
        fields={
            "result": "done or stopped",
            "step": "steps trained",
            "tokens_per_s": "input tokens of all ranks per second, start to end of the loop",
            "mfu": "model FLOPs utilisation over the loop, evaluations and checkpoints included",
            "gpu_peak_bytes": "most that torch's allocator has handed out on a rank's GPU, from "
            "when its model was loaded to the end of the loop; null without CUDA",
            "checkpoint": "folder of the last checkpoint, below the run folder",
        },
        optional=frozenset({"tokens_per_s", "mfu", "gpu_peak_bytes", "checkpoint"}),
    ),
    EventSpec(
        name="train",
        kind="metric",
        writer="rank 0",
        meaning="progress, every log_every_steps",
        fields={
            "step": "steps trained",
            "loss": "mean loss per answer token, over all ranks and the steps since the last",
            "lr": "learning rate",
            "grad_norm": "gradient norm before clipping",
            "tokens_per_s": "input tokens per second, all ranks, padding left out",
            "mfu": "model FLOPs utilisation: the share of what all GPUs could compute that the "
            "model needed; null on CPU, and for a GPU or a model of which it is not known",
            "time_data_s": "mean seconds a step: batches",
            "time_forward_s": "mean seconds a step, the GPU's own where there is one: forward and "
            "loss; null for this and the next two on a device that cannot be timed",
            "time_backward_s": "the same: backward, with its overlapped all-reduce",
            "time_comm_s": "mean seconds a step: collectives outside backward",
            "time_optimizer_s": "as forward: clipping and the optimizer",
        },
        optional=frozenset({"mfu", "time_forward_s", "time_backward_s", "time_optimizer_s"}),
    ),
    EventSpec(
        name="eval",
        kind="metric",
        writer="rank 0",
        meaning="held-out data, every sample once",
        fields={
            "step": "steps trained",
            "loss": "mean loss per answer token",
            "exact_match": "share of answers generated exactly; null if none are generated",
        },
        optional=frozenset({"exact_match"}),
    ),
    EventSpec(
        name="host",
        kind="metric",
        writer="launch",
        meaning="host memory of the run",
        fields={
            "pss_bytes": "proportional set size, summed over every process of the run",
            "pss_anon_bytes": "its anonymous part",
            "num_processes": "processes of the run",
            "available_bytes": "MemAvailable of the host",
        },
    ),
    EventSpec(
        name="gpu",
        kind="metric",
        writer="launch",
        meaning="one GPU of the run, every 5 seconds while ranks are there",
        fields={
            "index": "as nvidia-smi numbers it",
            "used_bytes": "memory in use by anyone",
            "total_bytes": "memory it has",
            "utilization_percent": "share of time a kernel ran; null for this and the next ones "
            "if the GPU does not report it, as a part of one (MIG)",
            "temperature_c": "of its chip, °C",
            "power_w": "what it draws, W",
            "power_limit_w": "what it may draw, W",
            "slowed_by": "why its clocks are lowered, a list: power cap, hardware slowdown, too "
            "hot (hardware), too hot (driver), power brake",
        },
        optional=frozenset(
            {"utilization_percent", "temperature_c", "power_w", "power_limit_w", "slowed_by"}
        ),
    ),
    EventSpec(
        name="gpu.silent",
        kind="mark",
        writer="launch",
        meaning="a GPU of the run, or the whole driver, does not answer any more",
        fields={
            "index": "as nvidia-smi numbers it; null for the driver",
            "why": "what NVML says",
        },
        optional=frozenset({"index"}),
    ),
    EventSpec(
        name="line",
        kind="log",
        writer="any",
        meaning="a line for people, as it was printed",
        fields={"text": "the line"},
    ),
    EventSpec(
        name="rank.exception",
        kind="error",
        writer="rank",
        meaning="a rank ends by an exception",
        fields={
            "exception": "its class",
            "message": "its text",
            "traceback": "as Python prints it",
            "exit_code": "what the run would exit with, were this the root cause",
        },
    ),
    EventSpec(
        name="rank.gone",
        kind="error",
        writer="launch",
        meaning="a rank's process is gone although the training is not over",
        fields={"failed_rank": "the rank"},
    ),
    EventSpec(
        name="rank.exit",
        kind="error",
        writer="agent, rank",
        meaning="a rank ended, and not with 0; a script's own exit code comes from the rank",
        fields={
            "failed_rank": "the rank",
            "exitcode": "its exit code, negative for a signal",
            "signal": "the signal's name, or null",
        },
        optional=frozenset({"signal"}),
    ),
    EventSpec(
        name="hang",
        kind="error",
        writer="launch",
        meaning="no rank has made progress for long; what was found lies in incidents/",
        fields={
            "failed_rank": "the rank that the others wait for; null where that cannot be told",
            "cause": "as the doctor names it",
            "title": "what that rank does, or the run",
            "still_s": "seconds without progress, while the launcher itself ran",
            "limit_s": "how many were allowed",
            "ends": "whether the launcher ends the ranks for it",
        },
        optional=frozenset({"failed_rank"}),
    ),
    EventSpec(
        name="memory.guard",
        kind="error",
        writer="launch",
        meaning="a process was ended because memory ran short",
        fields={
            "failed_rank": "the rank; null for a process that is none",
            "who": "the same in words",
            "phase": "what it did: a rank's phase, or preparing",
            "held_bytes": "its anonymous memory, with swap and its children's",
            "run_held_bytes": "that of all processes of the run",
            **_AVAILABLE,
        },
        optional=frozenset({"failed_rank"}),
    ),
    EventSpec(
        name="memory.oom_kill",
        kind="error",
        writer="launch",
        meaning="the kernel's OOM killer has killed, and a process of the run died of SIGKILL",
        fields={"num_kills": "by how much its count has risen", **_AVAILABLE},
    ),
    EventSpec(
        name="zygote.exit",
        kind="error",
        writer="agent",
        meaning="the zygote ended while it was needed",
        fields={
            "exitcode": "its exit code, negative for a signal",
            "signal": "the signal's name, or null",
        },
        optional=frozenset({"signal"}),
    ),
)

_BY_NAME: dict[tuple[str, str], EventSpec] = {(spec.kind, spec.name): spec for spec in EVENTS}


def spec_of(kind: str, name: str) -> EventSpec:
    """Return the row of an event as it appears in a file, where a span is `start` or `end`.

    Raises KeyError when the table has no such event.
    """
    return _BY_NAME["span" if kind in ("start", "end") else kind, name]
