"""prepared.json: what `launch` made ready before the ranks start, for them to open."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rundir.atomic import write_text
from rundir.paths import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPart:
    """One tokenised file of several: its samples, and how many of them an epoch takes."""

    path: str
    num_samples: int
    num_drawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Tokenised data: the samples of an epoch, those left out, and the token that ends an answer.

    `longest` is the number of tokens of its longest sample. Of several files there are `parts`,
    and `path` is that of the first. Where data are streamed `path` is a folder that says where each
    row is, `num_samples` are rows, and `longest` is what is allowed.
    """

    path: str
    num_samples: int
    num_too_long: int
    longest: int
    end_token_id: int
    is_streamed: bool = False
    mapped: list[str] = field(default_factory=list)  # files that ranks map besides
    num_tokens: int = 0
    parts: list[PreparedPart] = field(default_factory=list)
    made_of: dict[str, str] = field(default_factory=dict)  # what decides which samples there are

    @property
    def paths(self) -> list[str]:
        """All that ranks open."""
        return [part.path for part in self.parts] or [self.path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a rank that does not inherit the model gets it: the same way on every rank."""

    load: Literal["mmap", "broadcast", "random"] = "mmap"
    reason: str = ""
    read_ahead: list[str] = field(default_factory=list)  # files to have in memory before reading
    advice: str | None = None  # what the files cost, and how to have better ones
    known_as: str = ""  # the same for all runs whose ranks take the same memory to load


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Local paths of all a rank reads; `evaluation` is None where there is no held-out data."""

    model_path: str
    train: PreparedData
    evaluation: PreparedData | None
    resume_from: str | None  # a whole checkpoint folder
    loading: Loading = field(default_factory=Loading)


def write_prepared(run: RunDir, prepared: Prepared) -> None:
    """Write prepared.json into the run folder. Raises OSError."""
    write_text(run.path / "prepared.json", json.dumps(asdict(prepared), indent=1) + "\n")


def read_prepared(run: RunDir) -> Prepared:
    """What `write_prepared` wrote. Raises OSError when the run was not prepared."""
    table = json.loads(Path(run.path / "prepared.json").read_text(encoding="utf-8"))
    table["loading"] = Loading(**table["loading"])
    for name in ("train", "evaluation"):
        if (data := table[name]) is not None:
            data["parts"] = [PreparedPart(**part) for part in data.get("parts", ())]
            table[name] = PreparedData(**data)
    return Prepared(**table)
