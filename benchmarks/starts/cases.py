"""The cases of a measurement, and the figures measured."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Case:
    """One way to start: a launcher's name, the number of ranks, and what they load.

    `model` is empty, `model` (1.2 GB, mapped from its file) or `pickle` (each rank copies it into
    its own memory). With `cap_mb` everything is in a memory cgroup with that limit; `num_runs` are
    started in it at once, `num_ranks` each. With `again` the gate is that of the previous case, and
    has seen such a start.
    """

    launcher: str
    num_ranks: int
    model: str = ""
    cap_mb: int = 0
    num_runs: int = 1
    again: bool = False

    @property
    def name(self) -> str:
        """The name of the case in the results."""
        parts = [self.launcher, f"{self.num_ranks} ranks"]
        parts += [self.model] if self.model else []
        parts += [f"under {self.cap_mb:,} MB"] if self.cap_mb else []
        parts += [f"{self.num_runs} runs at once"] if self.num_runs > 1 else []
        parts += ["again"] if self.again else []
        return ", ".join(parts)


@dataclasses.dataclass(slots=True)
class Figures:
    """The figures measured for one case. Lists have one entry for each repetition."""

    ready_s: list[float] = dataclasses.field(default_factory=list)
    whole_s: list[float] = dataclasses.field(default_factory=list)  # of a script, to its end
    peak_pss_bytes: list[int] = dataclasses.field(default_factory=list)
    peak_anon_bytes: list[int] = dataclasses.field(default_factory=list)
    restart_s: list[float] = dataclasses.field(default_factory=list)
    num_restarts: int = 0
    num_oom_kills: list[int] = dataclasses.field(default_factory=list)  # by the kernel, in the cap
    num_failed: int = 0  # starts that did not come up
