"""Rows about the way of ranks from their start to training, and about their memory."""

from __future__ import annotations

from rundir.event_table.spec import EventSpec, span

_MEMORY = {
    "rss_bytes": "resident memory, file pages included",
    "pss_anon_bytes": "proportional share of anonymous memory: what this process really costs",
    "vms_bytes": "virtual size, what RLIMIT_AS counts",
    "host_available_bytes": "MemAvailable of the host",
    "gpu_used_bytes": "memory in use on this rank's GPU, by anyone; null without CUDA",
}
_GPU_MAY_BE_NULL = frozenset({"gpu_used_bytes"})
_AVAILABLE = {
    "available_bytes": "what could still be had",
    "limit_bytes": "of how much in all",
    "where": "the host, or the cgroup with that limit",
}


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
    span("prepare", "launch, prepare", "model or data made ready", what="model or data"),
    EventSpec(
        name="prepare.progress",
        kind="metric",
        writer="prepare",
        meaning="how far the data are read and tokenised: every second, and at the end",
        fields={
            "num_rows": "rows so far",
            "done_bytes": "of the files, on disk",
            "total_bytes": "of all files",
            "pss_bytes": "memory of the processes that do it",
        },
    ),
    span("spawn", "agent", "the ranks are started and watched", num_ranks="ranks on this node"),
    span("zygote.import", "zygote", "heavy imports, once for all ranks", what="the library"),
    span("zygote.build", "zygote", "the model, built once for all ranks"),
    span("lock.wait", "rank, zygote", "waiting to be admitted by the gate"),
    span("lock.hold", "rank, zygote", "inside the gate"),
    span("import", "rank", "heavy imports"),
    span("model.load", "rank", "the model is read and put on its device"),
    span("all_loaded.wait", "rank", "waiting until every rank has left the gate"),
    EventSpec(
        name="pg.init",
        kind="span",
        writer="rank",
        meaning="init_process_group, and a first barrier",
        fields={
            "address": "where the ranks meet: host and port, a URL, or the kind of store",
            "world_size": "how many ranks this one expects; null if that is not known",
        },
        optional=frozenset({"world_size"}),
    ),
    span("script", "rank", "a script of the user's own runs, from its first line to its end"),
    span("ddp.wrap", "rank", "the DistributedDataParallel constructor"),
    span("step", "rank", "reserved: one optimizer step", step="number of the step, from 1"),
    span("eval", "rank", "one evaluation", step="steps trained before it"),
    span("checkpoint", "rank 0", "a checkpoint is written", step="steps trained before it"),
    span("export", "rank 0", "the model is written as a Hugging Face folder"),
    span("evolution", "rank 0", "a snapshot of answers", step="steps trained before it"),
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
        name="restart.none",
        kind="mark",
        writer="agent",
        meaning="restarts are left, and none is made: a rank ended with an error that only a "
        "change of data or settings mends",
        fields={"failed_rank": "that rank"},
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
)
