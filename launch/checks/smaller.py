"""The settings of a short training of the same kind, for rungs and for the climb."""

from __future__ import annotations

from rundir.config import RunConfig

NUM_EXAMPLES = 100
_WARMUP_STEPS = 2


def smaller(config: RunConfig, *, batch_size: int, num_steps: int) -> dict[str, str]:
    """Return the settings of a short training of the same kind on the first examples."""
    train, data = config.train, config.data
    settings: dict[str, str | int] = {
        "data.max_samples": min(data.max_samples or NUM_EXAMPLES, NUM_EXAMPLES),
        "data.eval_path": "",
        "data.eval_fraction": 0,
        "train.max_steps": num_steps,
        "train.global_batch_size": min(train.global_batch_size, batch_size),
        "train.warmup_steps": min(train.warmup_steps, _WARMUP_STEPS),
        "train.log_every_steps": 1,
        "train.eval_every_steps": 0,
        "train.eval_generate": "false",
        "train.checkpoint_every_steps": 0,
        "train.report_to": "",
        "launch.max_restarts": 0,
    }
    if train.method != "full":
        settings["train.merge_adapters"] = "false"
    return {key: str(value) for key, value in settings.items()}
