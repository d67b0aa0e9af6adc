"""The launchers that are compared: how each is started, and how its ranks report their times."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rundir.events import Event, RunEvents

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = Path(__file__).with_name("peer_script.py")
_BIN = Path(sys.executable).parent

# Run in every process, whichever launcher started it, once it has imported a module.
_HOOK = """
import importlib.util, json, os, sys, time

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def load(module):
            run(module)
            {body}
        spec.loader.exec_module = load
        return spec

sys.meta_path.insert(0, Hook())
"""

# In Airlock's ranks as in the peers' script, nothing is done after the first barrier.
_HOLD = _HOOK.format(
    module="ranks.group",
    body="meet = module.meet; module.meet = lambda *args: (meet(*args), time.sleep(3600))",
)

# An arbitrary, unmodified script is ready once it has its process group.
_MET = """init = module.init_process_group
            def init_process_group(*args, **options):
                found = init(*args, **options)
                rank, folder = os.environ["RANK"], os.path.dirname(__file__)
                with open(f"{folder}/.met{rank}", "w") as file:
                    json.dump({"ready": time.monotonic(), "pid": os.getpid()}, file)
                os.rename(f"{folder}/.met{rank}", f"{folder}/met{rank}.json")
                return found
            module.init_process_group = init_process_group"""
_MEET = _HOOK.replace("{body}", _MET).replace("{module!r}", "'torch.distributed.distributed_c10d'")


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of one row of the timeline, in monotonic seconds."""

    row: str
    what: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Ready:
    """All ranks of an attempt, past their first barrier."""

    at: float  # monotonic seconds of the last one
    pids: tuple[int, ...]  # by rank
    spans: tuple[Span, ...]


Command = Callable[[Path, int, "Path | None", int], list[str]]
Seen = Callable[[Path, int, int], "Ready | None"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """`command(folder, num_ranks, model, restarts)`; `seen(folder, num_ranks, attempt)`.

    The model is a folder; for a launcher of scripts it is the script.
    """

    name: str
    command: Command
    seen: Seen
    hook: str = _HOLD

    def environment(self, folder: Path, gate: Path) -> dict[str, str]:
        """Return the same environment for all; Airlock's folders mean nothing to the others."""
        (folder / "sitecustomize.py").write_text(self.hook)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRLOCK_", "TORCH"))}
        gate.mkdir(mode=0o700, exist_ok=True)
        return kept | {
            "CUDA_VISIBLE_DEVICES": "",
            "ACCELERATE_USE_CPU": "1",  # without it accelerate forms no group on CPU
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(folder),
            "AIRLOCK_PYTHON": sys.executable,
            "AIRLOCK_RUNS_DIR": str(folder / "runs"),
            "AIRLOCK_CACHE_DIR": str(ROOT / ".cache"),
            "AIRLOCK_GATE_DIR": str(gate),
        }


def _torchrun(locked: bool) -> Command:
    def command(folder: Path, num_ranks: int, model: Path | None, restarts: int) -> list[str]:
        return [*_torchrun_itself(num_ranks, restarts), *_script(folder, model, locked=locked)]

    return command


def _torchrun_itself(num_ranks: int, restarts: int) -> list[str]:
    return [
        str(_BIN / "torchrun"),
        f"--nproc-per-node={num_ranks}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        f"--max-restarts={restarts}",
    ]


def _script_torchrun(
    _folder: Path, num_ranks: int, script: Path | None, restarts: int
) -> list[str]:
    return [*_torchrun_itself(num_ranks, restarts), str(script)]


def _script_airlock(_folder: Path, num_ranks: int, script: Path | None, restarts: int) -> list[str]:
    return [
        str(ROOT / "start.sh"),
        f"--num-gpus={num_ranks}",
        f"--max-restarts={restarts}",
        str(script),
    ]


def _accelerate(folder: Path, num_ranks: int, model: Path | None, restarts: int) -> list[str]:
    script = _script(folder, model, locked=False)
    return [*accelerate(num_ranks), f"--max_restarts={restarts}", *script]


def accelerate(num_ranks: int) -> list[str]:
    """Return accelerate's launcher for that many local ranks; more options and a script follow."""
    # --multi_gpu selects several processes on one node, whatever device they compute on.
    several = ["--multi_gpu"] if num_ranks > 1 else []
    return [
        str(_BIN / "accelerate"),
        "launch",
        *several,
        f"--num_processes={num_ranks}",
        "--num_machines=1",
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "--main_process_port=0",
    ]


def _script(folder: Path, model: Path | None, *, locked: bool) -> list[str]:
    lock = str(folder / "lock") if locked else "-"
    return [str(_SCRIPT), str(folder / "out"), "-" if model is None else str(model), lock]


def _airlock(start: str, admit: str, load: str = "mmap") -> Command:
    def command(_folder: Path, num_ranks: int, model: Path | None, restarts: int) -> list[str]:
        settings = {
            "launch.start": start,
            "launch.admit": admit,
            "launch.load": load,
            "launch.restart_backoff_s": "0",
            "model.dtype": "bfloat16",
            "train.global_batch_size": "64",
            "data.eval_path": "",
        } | ({} if model is None else {"model.path": str(model)})
        options = [f"--set={key}={value}" for key, value in settings.items()]
        return [
            # They stop before they train, for which they would not have the memory.
            str(ROOT / "start.sh"),
            "tiny",
            "--force",
            f"--num-gpus={num_ranks}",
            f"--max-restarts={restarts}",
            *options,
        ]

    return command


def _peer_seen(folder: Path, num_ranks: int, attempt: int) -> Ready | None:
    files = [folder / "out" / str(attempt) / f"rank{rank}.json" for rank in range(num_ranks)]
    if not all(file.exists() for file in files):
        return None
    said = [json.loads(file.read_text()) for file in files]
    steps = (
        ("wait", "begin", "admitted"),
        ("import", "admitted", "imported"),
        ("load", "imported", "loaded"),
        ("meet", "loaded", "ready"),
    )
    spans = [
        Span(f"rank {rank}", what, times[begin], times[end])
        for rank, times in enumerate(said)
        for what, begin, end in steps
    ]
    pids = tuple(times["pid"] for times in said)
    return Ready(max(times["ready"] for times in said), pids, tuple(spans))


def _met_seen(folder: Path, num_ranks: int, _attempt: int) -> Ready | None:
    files = [folder / f"met{rank}.json" for rank in range(num_ranks)]
    if not all(file.exists() for file in files):
        return None
    said = [json.loads(file.read_text()) for file in files]
    return Ready(max(one["ready"] for one in said), tuple(one["pid"] for one in said), ())


class _History:
    """The events of one run, each read only once: polling must not cost what is being measured."""

    def __init__(self, folder: Path) -> None:
        self._incoming = RunEvents(folder)
        self._events: list[Event] = []

    def so_far(self) -> list[Event]:
        self._events += self._incoming.new_events()
        return self._events


_history = lru_cache(maxsize=4)(_History)  # several runs may be followed at once


def _airlock_seen(folder: Path, num_ranks: int, attempt: int) -> Ready | None:
    events = folder / "runs" / "latest" / "events"
    if not events.exists():
        return None
    found = [event for event in _history(events.resolve()).so_far() if event["attempt"] == attempt]
    met = [event for event in found if (event["kind"], event["name"]) == ("end", "pg.init")]
    done = {event["rank"]: event for event in met if event["ok"]}
    if len(done) < num_ranks:
        return None
    at = max(event["mono"] for event in done.values())
    pids = tuple(done[rank]["pid"] for rank in range(num_ranks))
    return Ready(at, pids, tuple(span for event in found if (span := _span(event)) is not None))


_SPANS = {
    "zygote.import": "import",
    "zygote.build": "load",
    "lock.wait": "wait",
    "import": "import",
    "model.load": "load",
    "all_loaded.wait": "meet",
    "pg.init": "meet",
}


def _span(event: Event) -> Span | None:
    if event["kind"] != "end" or event["name"] not in _SPANS:
        return None
    row = "zygote" if event["rank"] is None else f"rank {event['rank']}"
    return Span(row, _SPANS[event["name"]], event["mono"] - event["duration_s"], event["mono"])


LAUNCHERS = {
    one.name: one
    for one in (
        Launcher("torchrun", _torchrun(locked=False), _peer_seen),
        Launcher("strict lock", _torchrun(locked=True), _peer_seen),
        Launcher("accelerate", _accelerate, _peer_seen),
        Launcher("airlock cold", _airlock("cold", "serial"), _airlock_seen),
        Launcher("airlock cold auto", _airlock("cold", "auto"), _airlock_seen),
        Launcher("airlock cold open", _airlock("cold", "open"), _airlock_seen),
        Launcher("airlock cold broadcast", _airlock("cold", "auto", "broadcast"), _airlock_seen),
        Launcher("airlock imports", _airlock("imports", "open"), _airlock_seen),
        Launcher("airlock warm", _airlock("warm", "auto"), _airlock_seen),
        Launcher("torchrun script", _script_torchrun, _met_seen, _MEET),
        Launcher("airlock script", _script_airlock, _met_seen, _MEET),
    )
}


def missing(launcher: Launcher) -> str | None:
    """Return the reason that the launcher cannot be measured here, or None."""
    program = launcher.command(Path(), 1, None, 0)[0]
    return None if shutil.which(program) else f"{program} is not installed"
