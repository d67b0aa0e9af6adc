"""The evidence only in a run folder: who ended first and how, and whether the kernel did it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor.runs import rank_stacks
from doctor.runs.run_folder import find_folder, of_run
from rundir.errors import ExitCode
from rundir.paths import shown
from tests.conftest import ROOT
from tests.doctor.run_folders import MEMORY, TRAIN, Story
from tests.running import here
from tests.state.story import PLAN

OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB"
PEER = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


def test_the_rank_that_failed_first_is_named_with_the_line_of_its_log() -> None:
    story = Story()
    story.raises(1, OOM)
    story.raises(0, PEER)
    verdict = story.judged()
    assert (verdict.cause, verdict.rank) == ("cuda-out-of-memory", 1)
    log = f"runs/{story.run.run_id}/logs/attempt0/rank1.log"
    assert [(one.file, one.line) for one in verdict.evidence] == [(log, 7), (log, 5)]


def test_a_bare_sigkill_is_not_called_an_oom_kill() -> None:
    story = Story()
    story.prints(1, "step 1\n")
    story.exited(1, -9, "SIGKILL")
    story.raises(0, PEER)
    verdict = story.judged()
    assert (verdict.cause, verdict.rank) == ("killed-by-sigkill", 1)
    assert verdict.title == "Killed by SIGKILL, sender unknown"
    assert "did not rise" in verdict.why
    (evidence,) = verdict.evidence
    assert evidence.file.endswith("events/agent.jsonl")
    assert '"signal": "SIGKILL"' in evidence.text


def test_the_kernels_count_proves_an_oom_kill() -> None:
    story = Story()
    story.exited(1, -9, "SIGKILL")
    story.tell("launch", "error", "memory.oom_kill", num_kills=1, **MEMORY)
    story.raises(0, PEER)
    verdict = story.judged(code=ExitCode.OUT_OF_MEMORY)
    assert (verdict.cause, verdict.rank) == ("host-oom-killed", 1)
    assert "memory.oom_kill" in verdict.evidence[0].text
    assert "--num-gpus" in verdict.fix or "launch.admit=serial" in verdict.fix


def test_the_guard_says_whom_it_has_ended_and_why() -> None:
    story = Story()
    story.tell(
        "launch",
        "error",
        "memory.guard",
        failed_rank=1,
        who="rank 1",
        phase="training",
        held_bytes=3 << 30,
        run_held_bytes=4 << 30,
        **MEMORY,
    )
    story.exited(1, -9, "SIGKILL")
    story.run.agent_log.parent.mkdir(parents=True, exist_ok=True)  # it saw another one end first
    story.run.agent_log.write_text("E1122 api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 7)")
    verdict = story.judged(code=ExitCode.OUT_OF_MEMORY)
    assert (verdict.cause, verdict.rank) == ("memory-guard", 1)
    assert "Rank 1 was ended by the memory guard while training: it held 3,072 MiB" in verdict.why
    assert "train.micro_batch_size=1" in verdict.fix


def test_an_exception_in_the_log_of_a_rank_that_was_killed_is_an_older_one() -> None:
    story = Story()
    story.prints(1, "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'a'\n")
    story.exited(1, -9, "SIGKILL")
    assert story.judged().cause == "killed-by-sigkill"


def test_what_others_say_when_somebody_killed_a_rank_follows_from_that() -> None:
    story = Story()
    story.exited(1, -9, "SIGKILL")
    story.raises(0, OOM)
    assert story.judged().cause == "killed-by-sigkill"


def test_survivors_that_the_launcher_ends_are_not_the_cause() -> None:
    story = Story(num_ranks=3)
    for rank in range(3):
        story.tell(f"rank{rank}", "mark", "limits", rlimit_as_bytes=None, rlimit_nofile=None)
    story.tell("launch", "error", "rank.gone", failed_rank=2)
    story.exited(0, -9, "SIGKILL")
    story.exited(1, -9, "SIGKILL")
    verdict = story.judged()
    assert (verdict.cause, verdict.rank) == ("rank-ended-early", 2)


@pytest.mark.parametrize(
    ("exitcode", "name", "cause"),
    [
        (3, None, "rank-exited"),
        (-11, "SIGSEGV", "killed-by-signal"),
        (-15, "SIGTERM", "killed-by-sigterm"),
    ],
)
def test_how_a_rank_ended_that_said_nothing_is_told(
    exitcode: int, name: str | None, cause: str
) -> None:
    story = Story()
    story.exited(1, exitcode, name)
    verdict = story.judged()
    assert (verdict.cause, verdict.rank) == (cause, 1)
    assert (name or str(exitcode)) in verdict.title


def test_only_the_last_attempt_counts() -> None:
    story = Story()
    story.raises(0, OOM)
    story.attempt = 1
    story.tell("agent", "mark", "attempt")
    story.raises(1, "KeyError: 'weights'")
    verdict = story.judged()
    assert (verdict.cause, verdict.title, verdict.rank) == (
        "python-exception",
        "KeyError: 'weights'",
        1,
    )
    assert "attempt1/rank1.log" in verdict.evidence[0].file


def test_an_exception_that_stands_in_no_log_is_read_from_the_events() -> None:
    story = Story(num_ranks=1)
    story.raises(0, OOM)
    story.run.rank_log(0, 0).unlink()
    verdict = story.judged()
    assert (verdict.cause, verdict.rank) == ("cuda-out-of-memory", 0)
    assert verdict.evidence[0].file.endswith("events/rank0.jsonl")


def test_a_run_that_was_refused_says_why() -> None:
    story = Story()
    verdict = story.judged(code=ExitCode.DOES_NOT_FIT, error="does not fit: the host needs 498 GiB")
    assert (verdict.cause, verdict.rank) == ("does-not-fit", None)
    assert verdict.title == "does not fit: the host needs 498 GiB"
    assert verdict.fix.startswith("./airlock plan tiny")
    assert verdict.evidence[0].text.startswith('"error": "does not fit')


def test_data_that_were_refused_are_told_with_what_to_change_about_them() -> None:
    story = Story()
    why = "none of 2 samples is held out by data.eval_fraction = 0.1"
    story.status.fix = "a larger data.eval_fraction"
    verdict = story.judged(code=ExitCode.DATA, error=why)
    assert (verdict.cause, verdict.title) == ("data-unusable", why)
    first, second = verdict.fix.splitlines()
    assert first == "a larger data.eval_fraction"
    assert "start.sh tiny" in second


def test_a_run_whose_launcher_is_dead_says_so() -> None:
    story = Story()
    story.tell("rank0", "metric", "train", step=3, **TRAIN)
    verdict = of_run(story.run)
    assert verdict.cause == "launcher-killed"
    assert verdict.title == "The launcher died while the run was training"


@pytest.mark.parametrize(
    ("phase", "code", "said"),
    [
        ("done", ExitCode.DONE, "The run is done"),
        ("interrupted", ExitCode.INTERRUPTED_UNSAVED, "nothing was saved"),
    ],
)
def test_nothing_is_wrong_with_a_run_that_ended_as_it_should(
    phase: str, code: ExitCode, said: str
) -> None:
    story = Story()
    story.raises(1, OOM)  # and was started again
    story.attempt = 1
    story.tell("agent", "mark", "attempt")
    verdict = story.judged(phase=phase, code=code, error="")
    assert (verdict.cause, verdict.evidence) == ("unknown", ())
    assert said in verdict.title


def test_a_run_is_found_by_its_folder_its_id_or_as_the_latest(runs: Path) -> None:
    story = Story()
    for name in (str(story.run.path), story.run.run_id, "latest", str(runs)):
        found = find_folder(name)
        assert found is not None
        assert found.path == story.run.path
    (runs / "train.log").touch()
    for name in (str(runs / "train.log"), "-", str(story.run.events)):
        assert find_folder(name) is None


@pytest.fixture
def launcher() -> Iterator[Story]:
    """Yield a run with a live launcher: a process that has the run's events open."""
    story = Story()
    hold = f"open({str(story.run.event_file('launch'))!r}, 'a'); "
    program = f"import time; file = {hold} print('here', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"AIRLOCK_RUN_DIR": str(story.run.path)},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        story.status.launch_pid = process.pid
        try:
            yield story
        finally:
            process.kill()


def test_of_a_live_run_it_is_said_who_waits_for_whom(launcher: Story) -> None:
    launcher.status.phase = "starting"
    launcher.ends(phase="starting", error="")
    launcher.tell("rank0", "start", "lock.hold")
    launcher.tell("rank0", "start", "model.load")
    launcher.tell("rank1", "start", "lock.wait")
    verdict = of_run(launcher.run)
    assert (verdict.cause, verdict.rank) == ("running", None)
    assert verdict.title == "The run is in progress: starting"
    assert verdict.why.startswith("Rank 1 waits at the gate (0:0")
    assert "; rank 0 loads the model (0:0" in verdict.why
    assert verdict.why.endswith(": the others wait for rank 0.")


def test_a_run_that_trains_says_its_step(launcher: Story) -> None:
    launcher.ends(phase="training", error="")
    for rank in ("rank0", "rank1"):
        launcher.tell(rank, "end", "ddp.wrap", duration_s=1.0, ok=True)
    launcher.tell("rank0", "mark", "train.plan", **PLAN | {"total_steps": 40})
    for step in (1, 2, 3, 4):
        launcher.tell("rank0", "metric", "train", step=step, **TRAIN)
    verdict = of_run(launcher.run)
    assert verdict.title == "The run is in progress: training, step 4 of 40"
    assert "Ranks 0, 1 train (0:0" in verdict.why


STUCK = """
import pathlib, sys, time
from machine.processes.stacks import answer_in
answer_in(pathlib.Path(sys.argv[1]))
def reads_data():
    print("ready", flush=True)
    time.sleep(600)
reads_data()
"""


def test_of_a_run_that_hangs_each_rank_is_asked_what_it_does(
    launcher: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from doctor.runs import running as live

    launcher.ends(phase="training", error="")
    waits = tmp_path / "torch/distributed"
    waits.mkdir(parents=True)
    (tmp_path / "slow.py").write_text(STUCK)
    (waits / "all_reduce.py").write_text(STUCK)
    started = []
    for rank, script in enumerate((waits / "all_reduce.py", tmp_path / "slow.py")):
        stacks = launcher.run.stacks(f"rank{rank}")
        process = subprocess.Popen(
            [sys.executable, str(script), str(stacks)],
            stdout=subprocess.PIPE,
            env=os.environ | {"AIRLOCK_RUN_DIR": str(launcher.run.path), "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        process.stdout.readline()
        started.append(process)
        launcher.tell(f"rank{rank}", "end", "ddp.wrap", duration_s=1.0, ok=True)
        path = launcher.run.event_file(f"rank{rank}")
        path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {process.pid}'))
    try:
        monkeypatch.setattr(live, "_SHARE", 0.0)
        monkeypatch.setattr(live, "_LOOK_S", 0.0)
        verdict = of_run(launcher.run)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert (verdict.cause, verdict.rank) == ("rank-behind", 1)
    assert "Meanwhile rank 0 waits in " in verdict.why
    assert "slow.py:7 in reads_data" in verdict.title
    evidence = verdict.evidence[0]
    assert evidence.file.endswith("stacks/rank1.txt")
    lines = Path(evidence.file).read_text().splitlines()
    assert lines[evidence.line - 1].strip() == evidence.text


def test_the_report_of_a_failed_run_gets_the_fix_and_nothing_twice() -> None:
    story = Story()
    story.raises(1, OOM)
    lines = story.report()
    assert lines[0].startswith("CUDA out of memory")
    assert lines[-1].startswith("→ ")
    other = Story()
    other.raises(1, "KeyError: 'weights'")  # the report already has the exception
    assert other.report() == []


def test_the_report_of_a_rank_that_crashed_says_what_its_log_tells_of_it() -> None:
    story = Story()
    story.prints(1, "Fatal Python error: Segmentation fault\n")
    story.exited(1, -11, "SIGSEGV")
    lines = story.report()
    assert lines[0].startswith("Segmentation fault")


def test_a_broken_rule_is_said_in_the_report_which_stands_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from doctor.logs import diagnosis, rules

    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "broken.toml").write_text("[[rule]]\ncause = 'x'\n")
    monkeypatch.setattr(diagnosis, "load_rules", lambda: rules.load_rules(folder))
    story = Story()
    story.raises(1, OOM)
    (line,) = story.report()
    assert "airlock doctor could not look at it: RuleError: broken.toml: rule 1 (x): " in line


def test_files_of_ours_that_stacks_are_recognised_by_are_there() -> None:
    group, script, watchdog = (
        "ranks/group.py",
        rank_stacks._RUNS_SCRIPT[0],
        rank_stacks._WATCHDOG[0],
    )
    assert rank_stacks._WAITS.search(str(ROOT / group))
    assert all((ROOT / name.lstrip("/")).is_file() for name in (group, script, watchdog))


TYPED = "NUM_GPUS=2 ./start_single.sh --data 'my data.jsonl' --set train.lora_rank=8"


def test_an_old_run_is_gone_on_with_by_what_was_typed() -> None:
    story = Story()
    story.run.command.write_text(f"{TYPED}\n\n# with torch's own:\ntorchrun\n")
    story.ends("interrupted", ExitCode.INTERRUPTED_SAVED, "")
    script = TYPED.replace("./start_single.sh", f"{here('start_single.sh')}")
    assert of_run(story.run).fix == script
    story.tell("rank0", "end", "checkpoint", step=3, duration_s=0.1, ok=True)
    assert of_run(story.run).fix == f"{script} --resume {shown(story.run.path)}"
    story.ends("training", error="")  # its launcher is dead
    assert of_run(story.run).fix == f"{script} --resume {shown(story.run.path)}"


def test_a_refused_run_is_asked_about_with_what_was_typed() -> None:
    for code, do in (
        (ExitCode.DOES_NOT_FIT, f"NUM_GPUS=2 ./airlock plan{TYPED.partition('.sh')[2]}   # says"),
        (ExitCode.PREFLIGHT, "NUM_GPUS=2 ./airlock preflight --set train.lora_rank=8"),
        (ExitCode.DATA, f"{TYPED}   # once the data"),
    ):
        story = Story()
        story.run.command.write_text(f"{TYPED}\n")
        story.ends(code=code)
        fix = of_run(story.run).fix
        for name in ("start_single.sh", "airlock"):
            fix = fix.replace(here(name), f"./{name}")
        assert fix.startswith(do)
