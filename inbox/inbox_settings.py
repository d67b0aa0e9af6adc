"""The options of an inbox, with their defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inbox.layout import Layout
from rundir.paths import ROOT

# A dropped set has no held-out set beside it: a part of its own is held out, by content.
HELD_OUT = ("--set", "data.eval_path=", "--set", "data.eval_fraction=0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSettings:
    """How an inbox trains, and how patient it is."""

    profile: str  # as ./start.sh takes it
    options: tuple[str, ...] = ()  # further words for ./start.sh: --set KEY=VALUE, --num-gpus N
    fresh: bool = False  # each training starts from the profile's model, not from the last good one
    attempts: int = 3  # trainings of one job that may fail before it is set aside
    backoff_s: float = 60.0  # wait after the first failure; it doubles with each further one
    settle_s: float = 5.0  # a file is complete once it has not changed for so long
    poll_s: float = 2.0  # pause between two looks at the folder, where inotify is not to be had
    min_free_gib: float = 10.0  # free disk below which no training is started
    forgetting: float = 0.1  # loss on earlier sets may grow by this share, and the model be current
    monitor: bool = False  # serve the pages beside it (docs/monitor.md)
    clone: Path = ROOT  # the folder whose start.sh and airlock are run
    environ: Mapping[str, str] = field(default_factory=dict)  # of what is started

    @property
    def recipe(self) -> str:
        """What a training depends on beside its data, as a short hash."""
        words = [self.profile, *self.options, "fresh" if self.fresh else "continue"]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    def environ_for(self, layout: Layout) -> dict[str, str]:
        """Return the environment of what is started: its runs lie in the inbox's folder."""
        return {**self.environ, "AIRLOCK_RUNS_DIR": str(layout.runs)}
