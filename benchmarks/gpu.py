"""The measurements that need a GPU, on one NVIDIA GPU, without a network, within ten minutes.

`python -m benchmarks.gpu --out FOLDER` measures the cases in the order of their worth until
`--limit-s` is up, and each result is a file as soon as it is known: FOLDER/CASE.json. The same
command again goes on with those that are left. `--case` names some, `--list` shows all with what
they need, and `--table FOLDER` prints what there is as Markdown. What cannot be measured is noted
with the reason; a failure does not stop the rest. docs/gpu-benchmarks.md has the order of commands.

On CPU (`--device cpu`) the same cases train `tiny`, which proves the benchmark and no more.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gpus.catalog import BY_NAME, ENTRIES, Entry
from benchmarks.gpus.claims import claims
from benchmarks.gpus.record import Record, keep_earlier, read_records
from benchmarks.gpus.run import Figures, Place, SkippedError
from benchmarks.gpus.table import markdown
from benchmarks.gpus.training import Steps
from benchmarks.report import machine
from benchmarks.trainings.training import has_gpu
from machine.gpus.nvml import driver_state
from rundir.paths import ROOT

_QUICK, _STEPS = Steps(warm=2, measured=3), Steps(warm=3, measured=8)
_LIMIT_S = 540.0  # a command that may take ten minutes then ends by itself
# A case is started only with this share of its expected time left: a shorter one may fit.
_LEAST_S, _LEAST_SHARE = 20.0, 0.6
_CLEAN_UP_S = 15.0  # of the limit: processes are ended, files removed
_KEPT = ("cache", "gate")  # of the scratch folder, besides models


def measure_all(
    entries: Sequence[Entry],
    place: Place,
    out: Path,
    steps: Steps,
    limit_s: float,
    *,
    again: bool = False,
) -> list[str]:
    """Measure the cases that there is time for; return the names of those that were not begun."""
    ends = time.monotonic() + limit_s - _CLEAN_UP_S
    found_here, left = describe(), []
    for entry in entries:
        before = read_records(out).get(entry.name)
        if before is not None and before.status == "done" and not again:
            _say(f"{entry.name}: done before, on {before.date}; --again measures it once more")
            continue
        left_s = ends - time.monotonic()
        if left_s < max(_LEAST_S, _LEAST_SHARE * entry.minutes * 60):
            left.append(entry.name)
            continue
        keep_earlier(out, entry.name)
        record = Record(
            case=entry.name,
            shows=entry.shows,
            date=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]]),
            settings=place.settings,
            machine=found_here,
        )
        _say(f"{entry.name}: begun; about {entry.minutes:g} minutes, at most {left_s / 60:.1f}")
        try:
            record.fill(_parts(entry, place, steps, left_s), out)
        finally:
            _tidy(place.folder)
        _say(f"{entry.name}: {record.status} in {record.seconds:.0f} s: {_told(record)}")
    for name in left:
        _say(f"{name}: not begun, as no time was left of {limit_s:.0f} s: the same command goes on")
    return left


def _parts(entry: Entry, place: Place, steps: Steps, timeout_s: float) -> Iterator[Figures]:
    if why := why_not_here(place):
        raise SkippedError(why)
    yield from entry.measure(place, steps, timeout_s)


def _told(record: Record) -> str:
    return record.reason or json.dumps(record.figures)


def _tidy(folder: Path) -> None:
    """Remove what the case has written; written models and caches are for the next ones too."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in _KEPT and not path.name.startswith("model-"):
            shutil.rmtree(path, ignore_errors=True)


def why_not_here(place: Place) -> str | None:
    """Return the reason that nothing can be measured on this machine, or None."""
    if place.device == "cpu":
        return None
    if place.gpu is None:
        return "no NVIDIA GPU is visible here"
    return None if has_gpu() else "this torch cannot use the GPU that is here"


def describe() -> dict[str, Any]:
    """Describe the machine, its GPU and the versions."""
    import transformers

    found = machine() | {"transformers": transformers.__version__}
    gpu, driver = Place(folder=Path()).gpu, driver_state()
    if gpu is None or driver is None:
        return found
    return found | {
        "gpu": gpu.name,
        "gpu_memory_bytes": gpu.memory_bytes,
        "driver": driver.version,
    }


def as_json(records: Mapping[str, Record], names: Sequence[str]) -> dict[str, Any]:
    """Return the object that `--json` prints, about the cases of those names."""
    chosen = {name: records[name] for name in names if name in records}
    cases = {name: one.figures for name, one in chosen.items() if one.figures}
    made = {name: claim.as_dict() for name, claim in claims(cases).items()}
    by_status: dict[str, dict[str, str]] = {"skipped": {}, "failed": {}, "stopped": {}}
    for name in names:
        one = chosen.get(name)
        if one is None:
            by_status["skipped"][name] = "not begun"
        elif one.status in by_status:
            by_status[one.status][name] = one.reason
    holds: bool | str = not by_status["failed"] and all(one["holds"] for one in made.values())
    if holds and (by_status["skipped"] or by_status["stopped"]):
        holds = "incomplete"
    return {"machine": describe(), "cases": cases, "ratios": made, **by_status, "holds": holds}


def print_list() -> None:
    """Print every case in the order in which they are measured, with what it needs."""
    table = Table("case", "GPU, GiB", "disk, GiB", "minutes", "shows")
    for one in ENTRIES:
        needs = (f"{value:g}" for value in (one.gpu_gib, one.disk_gib, one.minutes))
        table.add_row(one.name, *needs, one.shows)
    Console(width=130).print(table)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)  # noqa: T201


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    add = parser.add_argument
    add("--case", action="append", choices=list(BY_NAME), metavar="NAME", help="one, or several")
    add("--list", action="store_true", help="show all cases and what they need")
    add("--out", type=Path, default=ROOT / "runs" / "gpu", help="of the results; runs/gpu")
    add("--scratch", type=Path, help="where models and runs are kept, in airlock-gpu; OUT")
    add("--table", type=Path, metavar="OUT", help="print the results in OUT as Markdown")
    add("--limit-s", type=float, default=_LIMIT_S, help="everything ends by then; 540")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: `tiny`, to try it out")
    add("--quick", action="store_true", help="5 steps of each training instead of 11")
    add("--again", action="store_true", help="measure also what is done; results are kept")
    add("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, and with --json one object as the last line."""
    options = _options()
    if options.list:
        print_list()
        return
    if options.table:
        print(markdown(read_records(options.table)), end="")  # noqa: T201
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # so that no process is left
    out = options.out.absolute()
    scratch = (options.scratch or out).absolute() / "airlock-gpu"
    for folder in (out, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    place = Place(folder=scratch, device=options.device, settings=tuple(options.set))
    names = options.case or list(BY_NAME)
    chosen = [BY_NAME[name] for name in names]
    steps = _QUICK if options.quick else _STEPS
    measure_all(chosen, place, out, steps, options.limit_s, again=options.again)
    records = {name: one for name, one in read_records(out).items() if name in names}
    print(markdown(records), end="")  # noqa: T201
    if options.json:
        print(json.dumps(as_json(records, names)))  # noqa: T201


if __name__ == "__main__":
    main()
