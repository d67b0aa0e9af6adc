"""Running out of memory, in plain words: which process, whose memory, the proof, what to do."""

from __future__ import annotations

from rundir.events import Event
from rundir.units import MIB

_DOING = {
    "spawn": "as it started",
    "waiting": "while waiting at the gate",
    "importing": "while importing",
    "loading": "while loading the model",
    "ready": "before training",
    "training": "while training",
    "done": "as it finished",
    "failed": "after it had failed",
    "preparing": "while preparing",
}
_IN_SCRIPT = ("loading", "ready", "training")  # phases of a rank whose script has begun
_FEWER_AT_ONCE = (
    "→ fewer ranks at once: --set launch.admit=serial, or fewer in all: --num-gpus N",
    "→ one copy of imports and model for all ranks: --set launch.start=warm",
)
_SMALLER_STEPS = (
    "→ less memory a rank: train.micro_batch_size=1, model.gradient_checkpointing=true (--set)",
    "→ fewer ranks: --num-gpus N",
)
_ALONE = ("→ it loads but one copy, for all ranks: a smaller model, or a machine with more",)
_SCRIPT_STEPS = ("→ less memory a rank: smaller batches, or whatever else the script offers",)
_ADVICE = {
    "preparing": ("→ less data: --set data.max_samples=N",),
    "ready": _SMALLER_STEPS,
    "training": _SMALLER_STEPS,
}


def by_guard(event: Event, *, of_script: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return title and notes of a failure, from a `memory.guard` event."""
    phase = event["phase"]
    doing = "in the script" if of_script and phase in _IN_SCRIPT else _DOING[phase]
    left, limit = _mib(event["available_bytes"]), _mib(event["limit_bytes"])
    title = (
        f"ended by the memory guard {doing}: it held {_mib(event['held_bytes'])}, "
        f"and {left} were left of {limit}"
    )
    whose = f"of {event['where']}"
    used_bytes = event["limit_bytes"] - event["available_bytes"]
    if event["run_held_bytes"] < used_bytes / 2:
        run = _mib(event["run_held_bytes"])
        whose += f", of which this run held no more than {run}: others hold most of it"
    off = (
        "→ AIRLOCK_LIMITS_GUARD_GIB=0 switches the guard off: then the kernel chooses what to kill"
    )
    advice = _ADVICE.get(phase, _FEWER_AT_ONCE)
    if of_script:
        advice = (*_SCRIPT_STEPS, _SMALLER_STEPS[1])
    elif event["who"] == "the zygote":
        advice = _ALONE
    return title, (whose, *advice, off)


def by_kernel(event: Event, *, of_script: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return title and notes of a failure, from a `memory.oom_kill` event."""
    proof = (
        f"its oom_kill count rose by {event['num_kills']}; it had "
        f"{_mib(event['available_bytes'])} left of {_mib(event['limit_bytes'])} of {event['where']}"
    )
    advice = (_FEWER_AT_ONCE[0], (_SCRIPT_STEPS if of_script else _SMALLER_STEPS)[0])
    return "killed by the kernel's OOM killer", (proof, *advice)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes // MIB:,} MiB"
