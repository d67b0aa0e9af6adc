"""Real runs that fail are diagnosed from their folders alone, and by themselves when they end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.running import (
    Start,
    Typed,
    ended,
    finish,
    rank_pids,
    run_folder,
    wait_for,
)
from tests.scripts import JOIN, script


def test_a_rank_killed_from_outside_is_told_as_that_and_not_as_out_of_memory(
    airlock: Start, typed: Typed, environ: dict[str, str], tmp_path: Path
) -> None:
    text = f"{JOIN}\nprint('ready', flush=True)\ndist.barrier()\nimport time\ntime.sleep(1000)\n"
    with ended(airlock("run", script(tmp_path, text))) as process:
        run = run_folder(environ)
        log = run.rank_log(1, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        told = json.loads(typed("doctor", "--json")[1])
        assert (told["cause"], told["confidence"]) == ("running", 1.0)
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        code, out, err = finish(process, timeout_s=60)
    assert code == 10, out + err
    assert "journalctl -k" in out
    code, out, err = typed("doctor", "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert (told["cause"], told["rank"]) == ("killed-by-sigkill", 1)
    assert told["title"] == "Killed by SIGKILL, sender unknown"


def test_the_cause_and_the_fix_stand_in_the_report_of_a_run_that_failed(
    airlock: Start, typed: Typed, environ: dict[str, str], tmp_path: Path
) -> None:
    text = f"""{JOIN}
def load():
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
if rank == 1:
    load()
dist.barrier()
"""
    with ended(airlock("run", script(tmp_path, text))) as process:
        code, out, err = finish(process, timeout_s=60)
    assert code == 10, out + err
    report = out[out.index("airlock: the run failed: rank 1 raised RuntimeError") :]
    assert report.index("CUDA out of memory: the GPU's memory is full") < report.index("→ ")
    assert report.rstrip().endswith("RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB")
    told = json.loads(typed("doctor", "--json", str(run_folder(environ).path))[1])
    assert (told["cause"], told["rank"]) == ("cuda-out-of-memory", 1)
    first, second = told["evidence"]
    lines = run_folder(environ).rank_log(1, 0).read_text().splitlines()
    assert lines[first["line"] - 1] == first["text"]
    assert "in load" in second["text"]
