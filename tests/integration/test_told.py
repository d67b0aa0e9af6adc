"""`--on-event` on real runs: told at Ctrl-C, of a stall before the hang, of a bad loss."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from machine.processes.descendants import is_pid_alive
from tests.running import (
    ENDLESS,
    Start,
    assert_nothing_left,
    events_of,
    finish,
    hooked,
    rank_pids,
    training,
    wait_for,
)

_MASKED = "hf_0123456789abcdefSECRET"
_NAN_AT_THIRD = """
real = module.Trainer.gradients
def bad(self, *args):
    found = real(self, *args)
    return found * float("nan") if self._step == 2 else found
module.Trainer.gradients = bad
"""


def told(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_run_that_ctrl_c_ends_tells_so_once_with_secrets_masked_and_leaves_no_child(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    facts, pids = tmp_path / "facts", tmp_path / "pids"
    command = f"cat >> {facts}; sleep 600 & echo $! >> {pids}; echo to {_MASKED} >&2; exit 3"
    process = airlock(*ENDLESS, "--on-event", command, env={"HF_TOKEN": _MASKED})
    with training(process, environ) as (_, run):
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert code == 20, err
    (end,) = told(facts)
    assert (end["event"], end["exit_code"], end["run"]) == ("end", 20, run.run_id)
    assert end["phase"] == "interrupted"
    assert end["last_checkpoint"] == end["step"] > 0
    assert "--on-event ended with 3 for 'end': to [masked]" in out
    shown = [line for line in (out + err).splitlines() if "--resume" not in line]
    assert not any(_MASKED in line for line in shown)  # advice repeats what was typed
    assert not any(is_pid_alive(int(pid)) for pid in pids.read_text().split())
    assert_nothing_left(run)


@pytest.mark.long
def test_a_stall_is_told_of_before_the_hang_that_it_becomes(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    facts = tmp_path / "facts"
    limit = ("--set", "launch.hang_timeout_s=30", "--on-event", f"cat >> {facts}")
    with training(airlock(*ENDLESS, *limit), environ) as (process, run):
        wait_for(lambda: len(events_of(run, "metric", "train")) > 20, why="no usual step")
        os.kill(rank_pids(run)[1], signal.SIGSTOP)
        code, out, err = finish(process)
    assert code == 12, err
    stall, hang, failure, end = told(facts)
    assert [one["event"] for one in (stall, hang, failure, end)] == [
        "stall",
        "hang",
        "failure",
        "end",
    ]
    assert "for rank 1, which is stopped" in stall["what"]
    assert f"airlock: stalled: {stall['what']}" in out
    assert stall["waited_s"] < hang["still_s"]
    assert (hang["failed_rank"], end["exit_code"]) == (1, 12)
    assert_nothing_left(run)


def test_a_loss_that_is_no_number_is_told_of_with_its_step_and_samples(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    facts = tmp_path / "facts"
    env = hooked(environ, tmp_path, "train.step.loop", _NAN_AT_THIRD)
    more = ("--set", "train.on_bad_loss=stop", "--on-event", f"cat >> {facts}")
    code, out, err = finish(airlock(*ENDLESS, *more, env=env))
    assert code == 10, out + err
    bad, failure, end = told(facts)
    assert (bad["event"], bad["step"], bad["answer"]) == ("bad-loss", 3, "stop")
    assert bad["loss"] == "nan"
    assert len(bad["samples"]) == 4
    assert all(one["row"] for one in bad["samples"])
    assert "nan" in bad["what"]
    assert (failure["event"], end["event"], end["exit_code"]) == ("failure", "end", 10)
