"""Changes to a run that does not fit, the cheapest first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch.config.extra_packages import is_installed
from launch.config.profiles import PROFILES
from launch.config.resolve import resolve
from launch.plan.fit import Fit
from launch.plan.plan import Plan
from launch.plan.question import Device
from launch.plan.target import with_ranks
from rundir.config import RunConfig
from rundir.errors import UserError

_SHARES = (2, 4, 8)
_LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One way to make a run smaller: what to type, and the configuration that results."""

    what: str
    config: RunConfig
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def num_ranks(self) -> int:
        """The number of ranks that it is for."""
        return self.config.launch.num_ranks


Group = Sequence[Change]  # of one kind, the mildest first: one that fits is enough


def groups_of(plan: Plan, settings: Sequence[str], environ: Mapping[str, str]) -> list[Group]:
    """Return the changes worth asking about, in groups, the cheapest kind first."""
    config = plan.config
    groups: list[Group] = []
    is_host_short = plan.target.is_here and plan.host_verdict is not Fit.FITS
    if is_host_short:
        groups.append(_warm_start(config))
    groups.append(_shared_states(config))
    if not plan.is_hopeless:
        groups += _smaller_steps(config)
    groups += _adapters(config, plan.target.device)
    if is_host_short:
        groups.append(_fewer_ranks(config))
    groups.append(_other_profiles(config, settings, environ))
    return [group for group in groups if group]


def _warm_start(config: RunConfig) -> Group:
    if config.launch.start == "warm":
        return []
    wanted = {"launch.start": "warm"} | (
        {} if config.launch.load in ("auto", "mmap") else {"launch.load": "auto"}
    )
    return [_changed(config, "one copy of imports and model for all ranks", wanted)]


def _shared_states(config: RunConfig) -> Group:
    train = config.train
    is_whole = train.optimizer == "adamw" and not train.shard_optimizer
    if train.method != "full" or not is_whole or config.launch.num_ranks == 1:
        return []
    what = "AdamW's states shared among the ranks"
    return [_changed(config, what, {"train.shard_optimizer": "true"})]


def _smaller_steps(config: RunConfig) -> list[Group]:
    """Return each way to smaller steps, then all together; the samples per step stay the same."""
    at_once = _at_once(config)
    sizes = sorted({max(1, at_once // part) for part in (*_SHARES, at_once)}, reverse=True)
    micro = [
        _changed(config, "fewer samples at once, as many a step", _micro(size))
        for size in sizes
        if size < at_once
    ]
    groups: list[Group] = [micro]
    least = _least(config)
    if config.model.gradient_checkpointing is not True:
        checkpointing = {"model.gradient_checkpointing": "true"}
        groups.append([_changed(config, "activations computed twice, slower", checkpointing)])
        if least != checkpointing:
            groups.append([_changed(config, "both", least)])
    for settings in ({}, least) if least else ({},):
        more = ", with the above" if settings else ""
        groups.append(_shorter(config, settings, more))
    return groups


def _at_once(config: RunConfig) -> int:
    """Return the number of rows that a rank computes at once, if it has that many."""
    share = math.ceil(config.train.global_batch_size / config.launch.num_ranks)
    return min(config.train.micro_batch_size, share)


def _micro(size: int) -> dict[str, str]:
    return {"train.micro_batch_size": str(size)}


def _shorter(config: RunConfig, settings: dict[str, str], more: str) -> Group:
    lengths = [config.data.max_seq_length // part for part in _SHARES]
    what = f"longer samples left out{more}"
    return [
        _changed(config, what, settings | {"data.max_seq_length": str(length)})
        for length in lengths
        if length >= _LEAST_TOKENS
    ]


def _adapters(config: RunConfig, device: Device) -> list[Group]:
    kinds: list[tuple[str, str, dict[str, str]]] = []
    if config.train.method == "full":
        kinds.append(("lora", "adapters trained, not the weights", {}))
    # Four-bit weights are traced with the library that makes them.
    if config.train.method != "qlora" and device == "cuda" and is_installed("bitsandbytes"):
        start = {"launch.start": "imports"} if config.launch.start == "warm" else {}
        kinds.append(("qlora", "adapters trained, on weights in four bits", start))
    groups: list[Group] = []
    for method, what, more in kinds:
        wanted = {"train.method": method} | more
        least = wanted | _least(config)
        groups.append([_changed(config, what, wanted)])
        if least != wanted:
            groups.append([_changed(config, f"{what}, in the smallest steps", least)])
    return groups


def _least(config: RunConfig) -> dict[str, str]:
    """Return the settings that make steps as small as possible, without those already in place."""
    changes = _micro(1) if _at_once(config) > 1 else {}
    if config.model.gradient_checkpointing is not True:
        changes["model.gradient_checkpointing"] = "true"
    return changes


def _fewer_ranks(config: RunConfig) -> Group:
    num = config.launch.num_ranks
    fewer = sorted({max(1, num // part) for part in (*_SHARES, num)} - {num}, reverse=True)
    return [
        Change(
            what="fewer ranks, slower",
            config=with_ranks(config, number),
            options={"num_gpus": number},
        )
        for number in fewer
    ]


def _other_profiles(
    config: RunConfig, settings: Sequence[str], environ: Mapping[str, str]
) -> Group:
    """Return profiles with an architecture for the same kind of device; a trace shows sizes."""
    profiles = []
    for file in sorted(PROFILES.glob("*.toml")):
        try:
            other, _ = resolve(file.stem, settings, environ)
        except UserError:  # an invalid profile is reported to whoever runs it
            continue
        is_like = other.launch.needs_gpu == config.launch.needs_gpu
        if file.stem != config.profile and is_like and other.architecture:
            other = with_ranks(other, config.launch.num_ranks)
            profiles.append(
                Change(what="a smaller model", config=other, options={"profile": file.stem})
            )
    return profiles


def _changed(config: RunConfig, what: str, settings: dict[str, str]) -> Change:
    """Return the change to these settings, which must be valid."""
    for key, text in settings.items():
        section, _, name = key.partition(".")
        old = getattr(config, section)
        kind = type(getattr(old, name))
        value = text == "true" if text in ("true", "false") else kind(text)
        config = dataclasses.replace(config, **{section: dataclasses.replace(old, **{name: value})})
    return Change(what=what, config=config, settings=settings)
