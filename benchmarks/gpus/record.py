"""The result of a case: a JSON file that is written at once, and again whenever more is known."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpus.run import FailedError, Figures, OutOfTimeError, SkippedError
from rundir.atomic import write_text

Status = Literal["running", "done", "stopped", "failed", "skipped"]


@dataclass(slots=True, kw_only=True)
class Record:
    """What is known of a case. `stopped`: time was up, and the figures are those until then."""

    case: str
    shows: str
    date: str
    command: str
    settings: tuple[str, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "running"
    reason: str = ""
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)

    def write(self, out: Path) -> None:
        """Replace OUT/CASE.json. Raises OSError."""
        text = json.dumps(asdict(self), indent=2)
        write_text(out / f"{self.case}.json", text + "\n")

    def fill(self, parts: Iterable[Figures], out: Path) -> None:
        """Take the figures as they come, writing each time, and record how it ended.

        Nothing that a case raises passes, except what ends this process.
        """
        begun = time.monotonic()
        try:
            self.write(out)
            for part in parts:
                self.figures |= part
                self.seconds = round(time.monotonic() - begun, 1)
                self.write(out)
            self.status = "done"
        except SkippedError as why:
            self.status, self.reason = "skipped", str(why)
        except OutOfTimeError as why:
            self.status, self.reason = "stopped", str(why)
        except FailedError as why:
            self.status, self.reason = "failed", str(why)
        # A driver, disk or library may fail in any way; that must not lose the other results.
        except Exception as error:  # noqa: BLE001
            self.status, self.reason = "failed", f"{type(error).__name__}: {error}"
        except BaseException:
            self.status, self.reason = "stopped", "the benchmark was ended from outside"
            raise
        finally:
            self.seconds = round(time.monotonic() - begun, 1)
            self.write(out)


def keep_earlier(out: Path, case: str) -> None:
    """Rename the case's result of an earlier command, if it has figures, so that it stays."""
    file = out / f"{case}.json"
    if not file.exists() or not json.loads(file.read_text(encoding="utf-8"))["figures"]:
        return
    number = 1
    while (kept := out / f"{case}.{number}.json").exists():
        number += 1
    file.rename(kept)


def read_records(out: Path) -> dict[str, Record]:
    """Return the newest result of every case in `out`, by name; other files are left out."""
    found = {}
    for file in sorted(out.glob("*.json")):
        table = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(table, dict) and table.get("case") == file.stem:
            found[file.stem] = Record(**table)
    return found
