"""What an inbox promises about a job, seen with a daemon that really runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from inbox.jobs import every_job, jobs_in
from inbox.layout import Layout
from inbox.requests import ask
from tests.conftest import bound, mounted
from tests.inbox.kill_points import environment
from tests.inbox.serving import Served, serving
from tests.running import wait_for


def training(served: Served, name: str) -> psutil.Process:
    """Return the process that trains the job called `name`, once it trains."""

    def process() -> psutil.Process | None:
        job = next((job for job in jobs_in(served.layout.processing) if job.name == name), None)
        record = job.attempts[-1].process if job and job.attempts else None
        return psutil.Process(record["pid"]) if record else None

    wait_for(process, why="it does not train")
    wait_for(lambda: served.status()["current_step"], why="no step")
    trainer = process()
    assert trainer is not None
    return trainer


def test_each_dropped_thing_has_the_verdict_of_its_training(served: Served) -> None:
    hidden = served.layout.inbox / ".folder"
    hidden.mkdir()
    (hidden / "a.jsonl").write_text('{"steps": 2, "of": "a folder"}')
    served.plan("good.jsonl")
    served.plan("bad.jsonl", fail_at=1, save=False)
    served.plan("killer.jsonl", die_at=1, save=False)
    served.plan("none.jsonl", steps=0)
    served.plan("checkpoint.jsonl", steps=4, fail_at=2)
    served.start("--attempts", "3")
    hidden.rename(served.layout.inbox / "folder")
    (served.layout.inbox / "latin.jsonl").write_bytes(b'{"text": "\xe4\xf6\xff"}')
    served.wait_for(good="done", folder="done", bad="failed", killer="failed", none="failed")
    served.wait_for(checkpoint="done", latin="failed")
    for name, result, attempts, reason in (
        ("good.jsonl", "done", 1, "trained 2 steps"),
        ("folder", "done", 1, "trained 2 steps"),
        ("bad.jsonl", "failed", 3, "A mistake: seen by the doctor"),
        ("killer.jsonl", "failed", 3, "killed by signal 9"),
        ("none.jsonl", "failed", 3, "0 optimizer steps"),
        ("latin.jsonl", "failed", 1, "cannot be read or used"),
        ("checkpoint.jsonl", "done", 2, "trained 4 steps"),
    ):
        verdict = served.verdict(name)
        assert (verdict["result"], verdict["attempts"]) == (result, attempts), verdict
        assert reason in verdict["reason"]
    assert served.verdict("bad.jsonl")["fix"] == "mend"
    assert served.log().count("--resume") == 1
    done = jobs_in(served.layout.done)
    assert (served.layout.models / "current").resolve().name in {job.id for job in done}
    assert f"{done[0].name}: done" in (done[0].folder / "verdict.txt").read_text()


def test_a_half_written_file_is_taken_once_it_is_whole(served: Served) -> None:
    served.start("--settle-s", "1.5")
    path = served.layout.inbox / "slow.jsonl"
    text = json.dumps({"steps": 2, "text": "x" * 1000})
    size = len(text) // 5 + 1
    for begin in range(0, len(text), size):
        with path.open("a") as file:
            file.write(text[begin : begin + size])
        time.sleep(0.2)
        assert path.exists()
    served.wait_for(slow="done")


def test_what_has_priority_is_trained_first(served: Served) -> None:
    served.ask("pause")
    for name, priority in (("l", "low"), ("n", "normal"), ("h", "high"), ("m", "normal")):
        served.plan(f"{name}.jsonl", priority)
    served.start()
    wait_for(lambda: len(served.states()) == 4, why="they are not taken")
    served.ask("priority", "m.jsonl", "high")
    assert served.status()["status"] == "paused"
    served.ask("resume")
    served.wait_for(l="done", n="done", h="done", m="done")
    lines = [line for line in served.log().splitlines() if "attempt 1:" in line]
    begun = [line.split()[2].strip(":") for line in lines]
    names = {job.id: job.name[0] for _, job in every_job(served.layout)}
    order = [names[job] for job in begun]
    assert set(order[:2]) == {"h", "m"}
    assert order[2:] == ["n", "l"]


def test_the_attempt_is_on_the_disk_before_anything_is_started(
    served: Served, tmp_path: Path
) -> None:
    served.plan("a.jsonl")
    killed = served.start(
        env=environment(tmp_path / "hook", kill_at="recorded_process.start:start:before")
    )
    killed.wait(60)
    assert [len(job.attempts) for job in jobs_in(served.layout.processing)] == [1]
    assert served.processes() == []
    served.start()
    served.wait_for(a="done")
    assert served.verdict("a.jsonl")["attempts"] == 2


def test_between_attempts_others_are_trained_and_one_that_is_tried_again_does_not_wait(
    served: Served,
) -> None:
    served.plan("bad.jsonl", fail_at=1, save=False)
    served.start("--backoff-s", "1000")
    wait_for(lambda: "attempt 1 ended" in served.log(), why="it does not fail")
    served.plan("good.jsonl")
    served.wait_for(good="done", bad="queue")
    wait_for(lambda: "tried again" in served.status()["why"], why="it does not say so")
    served.ask("skip", "bad.jsonl")
    served.ask("retry", "bad.jsonl")
    wait_for(lambda: "attempt 2 ended" in served.log(), why="it waits")


@pytest.mark.parametrize(
    ("options", "why", "status"),
    [
        (("--set", "broken=option"), "there is no setting broken", "paused"),
        (("--min-free-gib", "1000000"), "low disk", "held"),
        ((), "is no model, or gone", "paused"),
    ],
)
def test_what_keeps_trainings_from_starting_is_told_and_costs_no_file(
    served: Served, options: tuple[str, ...], why: str, status: str
) -> None:
    current = served.layout.models / "current"
    if not options:
        current.symlink_to("gone")
    served.plan("a.jsonl")
    served.plan("b.jsonl")
    process = served.start(*options)
    wait_for(lambda: why in served.status()["why"], why="it does not say so")
    wait_for(lambda: served.states() == {"a.jsonl": "queue", "b.jsonl": "queue"}, why="not there")
    assert served.status()["status"] == status
    if options:
        served.end()
        process = served.start()
    else:
        current.unlink()
    served.ask("resume")
    served.wait_for(a="done", b="done")
    assert process.poll() is None


def test_the_same_content_is_trained_once_unless_it_is_asked_for(served: Served) -> None:
    served.drop("a.jsonl")
    served.start()
    served.wait_for(a="done")
    served.drop("b.jsonl")
    served.wait_for(a="done", b="done")
    assert served.verdict("b.jsonl")["result"] == "duplicate"
    assert len(served.completed()) == 1
    served.ask("retry", "b.jsonl")
    wait_for(lambda: len(served.completed()) == 2, why="it is not trained again")
    served.wait_for(a="done", b="done")
    assert served.verdict("b.jsonl")["result"] == "done"


@pytest.mark.parametrize("options", [(), ("--fresh",)])
def test_training_continues_from_the_last_good_model_unless_it_is_to_be_fresh(
    served: Served, options: tuple[str, ...]
) -> None:
    served.plan("a.jsonl")
    served.start(*options)
    served.wait_for(a="done")
    served.plan("b.jsonl")
    served.wait_for(b="done")
    first = next(job for job in jobs_in(served.layout.done) if job.name == "a.jsonl")
    assert (f"model.path={served.layout.models / first.id}" in served.log()) == (not options)


def test_stop_lets_the_step_end_and_the_job_goes_on_after_the_next_start(served: Served) -> None:
    served.plan_long("long.jsonl")
    process = served.start()
    trainer = training(served, "long.jsonl")
    assert "stopped" in served.ask("stop").stdout
    assert process.wait(30) == 0
    assert not trainer.is_running()
    assert served.status()["status"] == "stopped"
    job = jobs_in(served.layout.processing)[0]
    assert (job.attempts[-1].exit_code, job.num_failures) == (20, 0)
    served.start()
    wait_for(lambda: "--resume" in served.log(), why="it does not go on")


def test_stop_is_heard_while_a_large_file_is_read(served: Served) -> None:
    hidden = served.layout.inbox / ".large.jsonl"
    with hidden.open("wb") as file:
        file.truncate(1 << 42)  # of zeros, which take no space, and hours
    hidden.rename(served.layout.inbox / "large.jsonl")
    process = served.start()
    wait_for(lambda: served.status()["status"] == "hashing", why="it does not read")
    (served.layout.control / "stop").touch()
    assert process.wait(60) == 0
    assert list(served.layout.control.iterdir()) == []


def test_stop_is_heard_although_another_request_cannot_be_done(served: Served) -> None:
    served.plan_long("long.jsonl")
    process = served.start()
    trainer = training(served, "long.jsonl")
    served.plan("other.jsonl")
    served.wait_for(other="queue")
    other = jobs_in(served.layout.queue)[0]
    with bound(other.folder, other.folder, "ro"):
        ask(served.layout, "priority", job=other.id, priority="high")
        wait_for(lambda: served.status()["error"], why="it is done")
        ask(served.layout, "stop")
        assert process.wait(60) == 0
    assert not trainer.is_running()
    assert jobs_in(served.layout.processing)[0].attempts[-1].asked == "stop"


def test_a_killed_daemon_leaves_no_lock_and_its_training_which_the_next_one_takes_over(
    served: Served,
) -> None:
    until = served.plan_long("long.jsonl")
    served.start()
    trainer = training(served, "long.jsonl")
    served.kill()
    assert trainer.is_running()
    assert served.status()["status"] == "stopped"
    served.layout.lock.write_text(json.dumps({"pid": 1}))  # alive, and no inbox
    served.start()
    wait_for(lambda: "trains on" in served.log(), why="it is not taken over")
    until.touch()
    served.wait_for(long="done")
    assert served.verdict("long.jsonl")["attempts"] == 1
    assert len(served.completed()) == 1


def test_only_its_own_process_is_ever_ended(served: Served, tmp_path: Path) -> None:
    """The record names a pid that someone else has now: it is left alone, and the job goes on."""
    served.plan_long("a.jsonl")
    served.start()
    trainer = training(served, "a.jsonl")
    served.kill()
    trainer.kill()
    wait_for(lambda: not served.processes(), why="it lives")
    job = jobs_in(served.layout.processing)[0]
    words = [sys.executable, "-c", "import time; time.sleep(1000)", str(tmp_path), "start.sh"]
    with subprocess.Popen(words) as other:
        assert job.attempts[-1].process is not None
        job.attempts[-1].process["pid"] = other.pid
        job.write()
        served.start()
        wait_for(lambda: "attempt 2: " in served.log(), why="it does not go on")
        assert "its process is gone" in served.log()
        served.ask("skip")
        served.wait_for(a="failed")
        served.end()
        assert other.poll() is None
        other.kill()


def test_a_job_that_is_skipped_is_set_aside_and_can_be_tried_again(served: Served) -> None:
    until = served.plan_long("long.jsonl")
    served.start()
    training(served, "long.jsonl")
    served.ask("skip")
    served.wait_for(long="failed")
    assert served.verdict("long.jsonl")["result"] == "skipped"
    until.touch()
    served.ask("retry", "long.jsonl")
    served.wait_for(long="done")
    assert served.verdict("long.jsonl")["result"] == "done"


def test_a_disk_that_fills_up_holds_it_and_it_goes_on_when_there_is_room(
    environ: dict[str, str], tmp_path: Path
) -> None:
    with (
        mounted(tmp_path / "disk", "2m") as disk,
        serving(tmp_path / "folder", environ, "not started") as served,
    ):
        served.layout = Layout(disk / "served")
        served.layout.create()
        served.plan("a.jsonl")
        fill = disk / "fill"
        fill.write_bytes(b"x" * (psutil.disk_usage(str(disk)).free - 4096))
        process = served.start()
        wait_for(lambda: served.status()["is_running"], why="it does not serve")
        assert "the disk is full" in str(served.status()["error"])
        time.sleep(1.0)  # it tries, and cannot
        assert process.poll() is None
        assert [path.name for path in disk.rglob("a.jsonl")] == ["a.jsonl"]
        fill.unlink()
        served.wait_for(a="done")


def test_idle_is_healthy_and_a_second_daemon_says_who_has_the_folder(served: Served) -> None:
    first = served.start()
    wait_for(lambda: served.status()["is_running"], why="it does not start")
    wait_for(lambda: served.status()["status"] == "idle", why="it is not idle")
    answer = served.ask("status")
    assert answer.returncode == 0
    assert "idle and healthy" in answer.stdout
    second = served.ask("--profile", "tiny")
    assert second.returncode == 4
    assert f"process {first.pid}" in second.stderr
    assert first.poll() is None
    served.plan("a.jsonl")
    served.wait_for(a="done")


def test_a_training_hears_sigint_even_if_the_daemon_was_started_by_a_shell_that_ignores_it(
    served: Served, tmp_path: Path
) -> None:
    status_file = tmp_path / "status"
    (served.clone / "start.sh").write_text(f"#!/bin/sh\ncat /proc/$$/status > {status_file}\n")
    served.plan("a.jsonl")
    served.start(within=("sh", "-c", 'trap "" INT; exec "$@"', "sh"))
    wait_for(
        lambda: status_file.exists() and "SigIgn" in status_file.read_text(),
        why="it is not started",
    )
    ignored = int(status_file.read_text().partition("SigIgn:")[2].split()[0], 16)
    assert not ignored & 1 << signal.SIGINT - 1


def test_stopped_again_before_it_has_begun_it_still_goes_on_from_its_checkpoint(
    served: Served, tmp_path: Path
) -> None:
    served.plan_long("long.jsonl")
    served.start()
    training(served, "long.jsonl")
    served.ask("stop")
    start_sh = served.clone / "start.sh"
    program = start_sh.read_text()
    start_sh.write_text(f"#!/bin/sh\ntouch {tmp_path / 'begun'}\nexec sleep 1000\n")
    served.start()
    wait_for((tmp_path / "begun").exists, why="it does not begin")
    served.ask("stop")
    start_sh.write_text(program)
    served.start()
    wait_for(lambda: served.log().count("--resume") == 2, why=served.log())
