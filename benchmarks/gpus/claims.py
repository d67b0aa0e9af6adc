"""The goals that the cases serve: of each the value that was measured, and its limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpus.run import Figures

_OFF_AT_MOST = 0.05  # the plan's peak, as in benchmarks/plan.py for small models
_LEAST_OF_ROOFLINE, _LEAST_TO_TRAINER = 0.85, 1.3
_EQUAL_LOSS = 0.01  # in bfloat16, after the same steps: rounding differs, and no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One goal: a value that is to be `at_most` or `at_least` a limit."""

    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value is within both limits."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def as_dict(self) -> dict[str, float | bool]:
        """Return value, limit and verdict."""
        limits = {"at_most": self.at_most, "at_least": self.at_least}
        given = {key: limit for key, limit in limits.items() if limit is not None}
        return {"value": round(self.value, 4), **given, "holds": self.holds}


def claims(cases: Mapping[str, Figures]) -> dict[str, Claim]:
    """Return the claims about those cases that have the figures for them."""
    made: dict[str, Claim] = {}
    for name, one in cases.items():
        made |= {f"{name}: {what}": claim for what, claim in _of(one).items()}
    return made


def _of(one: Figures) -> dict[str, Claim]:
    return _of_speed(one) | _of_memory(one) | _of_starts(one) | _of_peers(one) | _of_addresses(one)


def _of_speed(one: Figures) -> dict[str, Claim]:
    if not one.get("tokens_per_s") or not one.get("roofline_tokens_per_s"):
        return {}
    share = one["tokens_per_s"] / one["roofline_tokens_per_s"]
    return {"tokens/s / the roofline's": Claim(value=share, at_least=_LEAST_OF_ROOFLINE)}


def _of_memory(one: Figures) -> dict[str, Claim]:
    made = {}
    if one.get("gpu_peak_bytes") and one.get("plan_peak_bytes"):
        off = abs(one["plan_peak_bytes"] / one["gpu_peak_bytes"] - 1)
        made["peak of the allocator, the plan's off by"] = Claim(value=off, at_most=_OFF_AT_MOST)
    used = one.get("nvml_loaded_peak_bytes") or one.get("nvml_peak_bytes")
    if used and one.get("plan_most_bytes"):
        share = used / one["plan_most_bytes"]
        made["memory of the GPU once loaded / the plan's most"] = Claim(value=share, at_most=1.0)
    return made


def _of_starts(one: Figures) -> dict[str, Claim]:
    made = {}
    # Where the same done twice differs as well, there is nothing to hold to.
    is_steady = not any(one.get(f"{again}_num_different") for again in ("cold_again", "repeated"))
    if is_steady and "num_different" in one:
        made["losses that are not bitwise those compared with"] = Claim(
            value=one["num_different"], at_most=0
        )
    if "zygote_touched_cuda" in one:
        touched = float(one["zygote_touched_cuda"])
        made["zygotes that have touched CUDA"] = Claim(value=touched, at_most=0)
    if one.get("resumed_gpu_peak_bytes"):
        share = one["resumed_gpu_peak_bytes"] / one["whole_gpu_peak_bytes"]
        made["peak of the allocator, resumed / not"] = Claim(value=share, at_most=1.01)
    return made


def _of_peers(one: Figures) -> dict[str, Claim]:
    if "ours_to_trainer" not in one:
        return {}
    apart = one["trainer_largest_loss_difference"]
    return {
        "tokens/s, ours / the Trainer's": Claim(
            value=one["ours_to_trainer"], at_least=_LEAST_TO_TRAINER
        ),
        "losses, apart from the Trainer's by": Claim(value=apart, at_most=_EQUAL_LOSS),
    }


def _of_addresses(one: Figures) -> dict[str, Claim]:
    if "limit_bytes" not in one:
        return {}
    most = [one[key] for key in ("step_bytes", "allocated_bytes") if key in one]
    if not most:
        return {}
    return {"VmPeak / the limit of a rank": Claim(value=most[0] / one["limit_bytes"], at_most=1.0)}
