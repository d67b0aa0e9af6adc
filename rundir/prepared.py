"""prepared.json: everything that `launch` makes ready before the ranks start, for them to open."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rundir.atomic import write_text
from rundir.paths import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPart:
    """One of several tokenised files: its samples, and how many of them an epoch takes."""

    path: str
    num_samples: int
    num_drawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Tokenised data: the samples of an epoch, those left out, and the token that ends an answer.

    `longest` is the number of tokens of its longest sample. Several files are in `parts`, and
    `path` is that of the first. If data are streamed, `path` is a folder that says where each row
    is, `num_samples` counts rows, and `longest` is the limit.
    """

    path: str
    num_samples: int
    num_too_long: int
    longest: int
    end_token_id: int
    is_streamed: bool = False
    mapped: list[str] = field(default_factory=list)  # other files that ranks map
    num_tokens: int = 0
    parts: list[PreparedPart] = field(default_factory=list)
    made_of: dict[str, str] = field(default_factory=dict)  # what determines the samples

    @property
    def paths(self) -> list[str]:
        """The paths of all files that ranks open."""
        return [part.path for part in self.parts] or [self.path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The way in which a rank that does not inherit the model gets it: the same on every rank."""

    load: Literal["mmap", "broadcast", "random"] = "mmap"
    reason: str = ""
    read_ahead: list[str] = field(default_factory=list)  # local files that ranks ask the kernel for
    read_in: list[str] = field(default_factory=list)  # files that are read over a network meanwhile
    advice: str | None = None  # the cost of the files, and how to get better ones
    known_as: str = ""  # the same for all runs whose ranks take the same memory to load


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The local paths of everything a rank reads; `evaluation` is None without held-out data."""

    model_path: str
    train: PreparedData
    evaluation: PreparedData | None
    resume_from: str | None  # a complete checkpoint folder
    loading: Loading = field(default_factory=Loading)
    evaluations: dict[str, PreparedData] = field(default_factory=dict)  # named sets
    bf16_updates: Literal["master", "stochastic", "plain"] = "master"  # for train.bf16_updates=auto
    recomputed: bool | int = True  # for model.gradient_checkpointing=auto


def write_prepared(run: RunDir, prepared: Prepared) -> None:
    """Write prepared.json into the run folder. Raises OSError."""
    write_text(run.prepared, json.dumps(asdict(prepared), indent=1) + "\n")


def read_prepared(run: RunDir) -> Prepared:
    """Return what `write_prepared` wrote. Raises OSError when the run was not prepared."""
    table = json.loads(run.prepared.read_text(encoding="utf-8"))
    table["loading"] = Loading(**table["loading"])
    for name in ("train", "evaluation"):
        table[name] = None if table[name] is None else _data_of(table[name])
    named = table.get("evaluations", {})
    table["evaluations"] = {name: _data_of(data) for name, data in named.items()}
    return Prepared(**table)


def _data_of(data: dict[str, Any]) -> PreparedData:
    parts = [PreparedPart(**part) for part in data.get("parts", ())]
    return PreparedData(**data | {"parts": parts})
