"""Groups of real ranks on gloo, forked by a program that has loaded the heavy libraries once."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.events import Event, read_events
from rundir.paths import ROOT, RunDir
from rundir.prepared import Prepared, write_prepared
from tests.train.data.test_prepare_data import prepare_file
from train.model.make_checkpoint import make_checkpoint


def run_program(program: str, folder: Path) -> Path:
    """Run a test file as the program that it also is, on `folder`, which is returned."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "AIRLOCK_CACHE_DIR": str(folder / "cache"),
    }
    subprocess.run([sys.executable, "-P", program, str(folder)], env=env, check=True)
    return folder


def new_run(folder: Path, name: str, config: RunConfig, prepared: Prepared) -> RunDir:
    run = RunDir(folder / name)
    for part in (run.path, run.events, run.control, run.checkpoints):
        part.mkdir()
    run.config.write_text(config_text(config, {}), encoding="utf-8")
    write_prepared(run, prepared)
    return run


def prepared_data(
    folder: Path, config: RunConfig, rows: Iterable[dict[str, str]], name: str = "model"
) -> Prepared:
    """Make the model of `config` and prepare `rows`, to train on and to evaluate, at data.path."""
    file, model = Path(config.data.path), folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    make_checkpoint(config, model)
    data = prepare_file(file, model, 0, 100)
    return Prepared(model_path=str(model), train=data, evaluation=data, resume_from=None)


def start_ranks(job: Any, run: RunDir, world_size: int) -> None:
    """Fork the ranks of one group, as torchrun would place them; if one fails, end them all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    os.environ["WORLD_SIZE"] = str(world_size)
    ranks = []
    for rank in range(world_size):
        os.environ["RANK"] = str(rank)
        ranks.append(multiprocessing.get_context("fork").Process(target=job, args=(run, rank)))
        ranks[-1].start()
    waiting = {process.sentinel for process in ranks}
    while waiting and not any(process.exitcode for process in ranks):
        waiting -= set(multiprocessing.connection.wait(list(waiting)))
    for process in ranks:
        if waiting:
            process.kill()
        process.join()
    assert [process.exitcode for process in ranks] == [0] * world_size, run.path.name


def told(run: Path, kind: str, name: str) -> list[Event]:
    return [
        event
        for event in read_events(run / "events")
        if (event["kind"], event["name"]) == (kind, name)
    ]
