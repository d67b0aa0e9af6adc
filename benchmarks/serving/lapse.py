"""A page left open: hours of a run's events, written in minutes, and what page and server hold."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.serving.long_runs import events
from benchmarks.serving.measured_server import Server
from rundir.owner import take
from rundir.paths import RunDir

_BATCH_S = 120  # of the run, written at once
_LONGEST_S = 120.0
_NUM_SAMPLES = 8  # besides that of the start
_GPUS, _GPU_EVERY_S = 8, 5
_STEP = "document.querySelector('[data-tile=step]')?.textContent.replaceAll(',', '') ?? ''"


def lapse(browser: Any, folder: Path, hours: int) -> dict[str, Any]:
    """Leave a run's page open for `hours` of a run with a step, and a line, each second.

    Each sample is of the page after its garbage was collected, and of the server.
    """
    run = _new_run(folder / "live")
    num_steps = hours * 3600
    lines = (row for row in events(1, num_steps) if row["name"] == "train")
    samples, begin = [], time.monotonic()
    with Server(run.path.parent, folder / "live-cache", "monitor") as server:
        page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        page.goto(f"{server.url}/run?run={run.run_id}")
        session = page.context.new_cdp_session(page)
        for last in range(_BATCH_S, num_steps + 1, _BATCH_S):
            _write(run, [next(lines) for _ in range(_BATCH_S)], last)
            _until_shown(page, last)
            if last == _BATCH_S or last % (num_steps // _NUM_SAMPLES) == 0:
                samples.append({"hour": last / 3600} | _sample(page, session, server))
        took_s = time.monotonic() - begin
        peak_bytes = server.peak_bytes()
        page.context.close()
    return {
        "hours": hours,
        "took_s": took_s,
        "samples": samples,
        "server_peak_bytes": peak_bytes,
    }


def _new_run(runs: Path) -> RunDir:
    run = RunDir(runs / "20260102-000000-open-0f0f")
    run.events.mkdir(parents=True)
    run.run_log.parent.mkdir()
    run.config.write_text('profile = "32b"\n')
    take(run, "./start.sh 32b")
    _write(run, [], 0)
    return run


def _write(run: RunDir, rows: list[dict[str, Any]], last: int) -> None:
    """Add the events of a batch, the log's lines, the GPUs' samples and the host's, the state."""
    begin_t = 1.8e9 + last - len(rows)
    with run.event_file("rank0").open("a") as file:
        for at, row in enumerate(rows):
            file.write(json.dumps(row | {"t": begin_t + at}) + "\n")
    with run.run_log.open("a") as log:
        log.writelines(f"step {row['step']}  loss {row['loss']:.4f}\n" for row in rows)
    with run.event_file("launch").open("a") as file:
        for at in range(0, len(rows), _GPU_EVERY_S):
            file.writelines(json.dumps(one) + "\n" for one in _machine(begin_t + at))
    status = {"v": 1, "run_id": run.run_id, "profile": "32b", "phase": "training"}
    status |= {"step": last, "total_steps": 10**6, "loss": 1.0, "exit_code": None}
    status |= {"started_t": time.time() - last, "updated_t": time.time()}
    ranks = [{"rank": rank, "phase": "training", "pid": 1} for rank in range(_GPUS)]
    new = run.path / "status.new"
    new.write_text(json.dumps(status | {"ranks": ranks}))
    new.replace(run.status)


def _machine(t: float) -> list[dict[str, Any]]:
    head: dict[str, Any] = {
        "v": 1,
        "t": t,
        "mono": t,
        "node": 0,
        "attempt": 0,
        "rank": None,
        "pid": 1,
    }
    head |= {"kind": "metric"}
    host: dict[str, Any] = {
        "pss_bytes": 2e10,
        "pss_anon_bytes": 1e10,
        "num_processes": 10,
        "available_bytes": 9e11,
    }
    gpu = {"used_bytes": 7e10, "total_bytes": 8.5e10, "temperature_c": 60, "power_w": 650}
    gpus = [gpu | {"index": index, "utilization_percent": 99} for index in range(_GPUS)]
    return [head | {"name": "host"} | host, *(head | {"name": "gpu"} | one for one in gpus)]


def _until_shown(page: Any, step: int) -> None:
    give_up_mono = time.monotonic() + _LONGEST_S
    while not page.evaluate(_STEP).startswith(str(step)):
        assert time.monotonic() < give_up_mono, f"step {step}: {page.evaluate(_STEP)}"
        time.sleep(0.05)


def _sample(page: Any, session: Any, server: Server) -> dict[str, Any]:
    page.wait_for_timeout(1500)  # what was told last is drawn
    session.send("HeapProfiler.collectGarbage")
    return {
        "page_heap_bytes": session.send("Runtime.getHeapUsage")["usedSize"],
        "page_nodes": page.evaluate("document.querySelectorAll('*').length"),
        "server_rss_bytes": server.rss_bytes(),
    }
