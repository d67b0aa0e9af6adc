"""What the watch over a script costs: CPU seconds of its parts, and steps per second without it.

`python -m benchmarks.watching [--ranks N] [--quick] [--json]`: gloo ranks all-reduce and multiply
matrices. All is measured in one run, in windows of a few seconds: with the watch and without it
in turns, so that a drift in the machine's speed affects both alike. Without: the watchdog of each
rank looks at nothing, and the launcher is suspended (SIGSTOP).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.turns import Compared
from rundir.paths import ROOT

_MOST_SHARE, _LEAST_RATIO = 0.005, 0.995
_SCRIPT = """
import json, os, signal, sys, threading, time
import psutil, torch, torch.distributed as dist

def cpu_of_thread(name):
    threads = [one for one in threading.enumerate() if one.name == name]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(one.ident)) for one in threads)

def cpu_of_process(one):
    times = one.cpu_times()
    return times.user + times.system

benchmark, window_s, num_windows, result = *map(int, sys.argv[1:4]), sys.argv[4]
dist.init_process_group("gloo")
torch.set_num_threads(1)
is_first = dist.get_rank() == 0
above = {one.pid: one for one in psutil.Process().parents()}
launcher = next(one for one in above.values() if one.ppid() == benchmark)
threads = [one for one in threading.enumerate() if one.name == "airlock-watchdog"]
watchdog_of_rank = threads[0]._target.__self__
observe, is_watched = watchdog_of_rank._observe, True
watchdog_of_rank._observe = lambda now: observe(now) if is_watched else None
data, other = torch.rand(256, 256), torch.rand(256, 256)
time.sleep(5)  # until the console has shown the start
windows = []
for number in range(num_windows + 2):  # two to warm up
    is_watched = number % 4 in (0, 3)
    if is_first:
        launcher.send_signal(signal.SIGCONT if is_watched else signal.SIGSTOP)
    dist.barrier()
    begin, launched = time.monotonic(), cpu_of_process(launcher)
    cpu, watchdog = time.process_time(), cpu_of_thread("airlock-watchdog")
    num, go_on = 0, torch.ones(1)
    while go_on.item():
        for _ in range(5):
            total = data @ other
            dist.all_reduce(total)
            num += 1
        go_on.fill_(float(time.monotonic() - begin < window_s))
        dist.broadcast(go_on, 0)
    seconds = time.monotonic() - begin
    sums = torch.tensor(
        [time.process_time() - cpu, cpu_of_thread("airlock-watchdog") - watchdog],
        dtype=torch.float64,
    )
    dist.all_reduce(sums)
    windows.append({
        "is_watched": is_watched,
        "seconds": seconds,
        "steps_per_s": num / seconds,
        "ranks_cpu_s": sums[0].item(),
        "watchdogs_cpu_s": sums[1].item(),
        "launcher_cpu_s": cpu_of_process(launcher) - launched,
    })
if is_first:
    launcher.send_signal(signal.SIGCONT)
    open(result, "w").write(json.dumps(windows[2:]))
"""

Window = dict[str, Any]


def _windows(num_ranks: int, num_windows: int, window_s: int) -> list[Window]:
    """Run the script once; return the figures of its windows."""
    with tempfile.TemporaryDirectory() as name:
        script, result = Path(name) / "steps.py", Path(name) / "figures.json"
        script.write_text(_SCRIPT)
        words = [str(os.getpid()), str(window_s), str(num_windows), str(result)]
        ranks = ["--num-gpus", str(num_ranks)]
        subprocess.run(
            [sys.executable, "-P", "-m", "launch", "run", *ranks, str(script), *words],
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "AIRLOCK_RUNS_DIR": name,
            },
            stdout=sys.stderr,
            check=True,
        )
        found: list[Window] = json.loads(result.read_text())
        return found


def _measure(num_ranks: int, num_pairs: int, window_s: int) -> dict[str, object]:
    windows = _windows(num_ranks, 2 * num_pairs, window_s)
    pairs = [sorted(windows[i : i + 2], key=_is_watched) for i in range(0, len(windows), 2)]
    ratios = [on["steps_per_s"] / off["steps_per_s"] for off, on in pairs]
    on, off = [pair[1] for pair in pairs], [pair[0] for pair in pairs]
    ratio = Compared.of([one["steps_per_s"] for one in on], [one["steps_per_s"] for one in off])
    watchdogs, launcher = (
        sum(one[part] for one in on) / sum(one["ranks_cpu_s"] for one in on)
        for part in ("watchdogs_cpu_s", "launcher_cpu_s")
    )
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {num_ranks} ranks",
        "cases": {
            "with": {"steps_per_s": statistics.median(one["steps_per_s"] for one in on)},
            "without": {"steps_per_s": statistics.median(one["steps_per_s"] for one in off)},
            "pairs": {"num": len(pairs), "least": min(ratios), "most": max(ratios)},
        },
        "ratios": {
            "steps_per_s_with_to_without": asdict(ratio),
            "watchdogs_share_of_cpu": watchdogs,
            "launcher_share_of_cpu": launcher,
        },
        "holds": ratio.mean >= _LEAST_RATIO and watchdogs + launcher <= _MOST_SHARE,
    }


def _is_watched(window: Window) -> bool:
    return bool(window["is_watched"])


@click.command()
@click.option("--ranks", "num_ranks", default=8, show_default=True, help="Ranks of the script.")
@click.option("--quick", is_flag=True, help="Three short pairs.")
@click.option("--json", "as_json", is_flag=True, help="Print one object as the last line.")
def main(*, num_ranks: int, quick: bool, as_json: bool) -> None:
    """Measure what the watch costs."""
    told = _measure(num_ranks, *((3, 4) if quick else (40, 6)))
    print(json.dumps(told) if as_json else json.dumps(told, indent=1))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
