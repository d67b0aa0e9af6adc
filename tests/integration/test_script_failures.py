"""Scripts that fail, are killed or stopped: the run ends as clearly as that of a profile."""

from __future__ import annotations

import os
import re
import signal
import textwrap

import pytest

from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import (
    User,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    rank_pids,
    wait_for,
    zygote_pid,
)
from tests.scripts import BOTH, JOIN, WARM, script


@BOTH
def test_an_exception_is_told_as_python_tells_it_and_ends_the_run(user: User, start: str) -> None:
    text = """
    import atexit, os
    import torch.distributed as dist
    def load():
        raise FileNotFoundError("no weights")
    atexit.register(lambda: print("atexit after all"))
    if os.environ["RANK"] == "1":
        load()
    dist.init_process_group("gloo")
    """
    path = script(user.folder, text)
    out = user.output_of("run", "--set", f"launch.start={start}", path, code=10, timeout_s=60)
    assert "airlock: the run failed: rank 1 raised FileNotFoundError: no weights" in out
    told = out[out.index("Traceback") :]
    assert re.match(
        r'Traceback \(most recent call last\):\n  File ".*my_train.py", line 8, in <module>\n'
        r'    load\(\)\n  File ".*my_train.py", line 5, in load\n    raise FileNotFoundError\(',
        told,
    )
    assert str(ROOT / "launch") not in out
    assert out.rstrip().splitlines()[-1] == "FileNotFoundError: no weights"
    assert "atexit after all" in out
    assert_nothing_left(user.run())


@WARM
def test_the_exit_code_of_a_rank_is_named(user: User, start: str) -> None:
    path = script(user.folder, f"{JOIN}\nif rank == 1:\n    sys.exit(3)\ndist.barrier()\n")
    out = user.output_of("run", "--set", f"launch.start={start}", path, code=10, timeout_s=60)
    assert "airlock: the run failed: rank 1 ended with exit code 3" in out
    assert_nothing_left(user.run())


@WARM
def test_a_rank_killed_in_a_script_ends_the_run_and_is_not_told_as_out_of_memory(
    user: User, start: str
) -> None:
    # The other rank ignores SIGTERM, and torch alone would give it 30 s.
    text = f"{JOIN}\nimport signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    path = script(user.folder, text + "print('ready', flush=True)\ntime.sleep(1000)\n")
    with ended(user.airlock("run", "--set", f"launch.start={start}", path)) as process:
        run = user.run()
        log = run.rank_log(1, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        assert read_status(run)["phase"] in ("starting", "training")
        diagnosis = user.diagnosis()
        assert (diagnosis["cause"], diagnosis["confidence"]) == ("running", 1.0)
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 10
    assert "rank 1 killed by SIGKILL" in out
    assert "journalctl -k" in out
    assert_nothing_left(run)
    diagnosis = user.diagnosis()
    assert (diagnosis["cause"], diagnosis["rank"]) == ("killed-by-sigkill", 1)
    assert diagnosis["title"] == "Killed by SIGKILL, sender unknown"


@pytest.mark.parametrize("victim", ["launch", pytest.param("zygote", marks=pytest.mark.long)])
def test_nothing_outlives_a_run_of_a_script_that_is_killed(user: User, victim: str) -> None:
    text = f"""{JOIN}
import subprocess, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
time.sleep(1000)
"""
    with ended(user.airlock("run", script(user.folder, text))) as process:
        run = user.run()
        wait_for(lambda: len(events_of(run, "end", "pg.init")) == 2, why="they did not join")
        wait_for(lambda: read_status(run)["phase"] == "training", why="not seen to train")
        os.kill(process.pid if victim == "launch" else zygote_pid(run), signal.SIGKILL)
        process.wait(30)
        assert_nothing_left(run)
    assert process.returncode == (-signal.SIGKILL if victim == "launch" else 10)


_SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(4)
    open(f"saved{rank}", "w").close()
    print(f"saved {rank}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save if rank == 0 else signal.SIG_DFL)
dist.barrier()
print("ready", flush=True)
time.sleep(1000)
"""


def test_ctrl_c_reaches_a_script_as_sigterm_and_gives_it_time(user: User) -> None:
    with ended(user.airlock("run", script(user.folder, JOIN + _SAVES))) as process:
        run = user.run()
        log = run.rank_log(0, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process, timeout_s=40)
    assert code == 21, out + err
    assert "saved 0" in out
    assert (user.folder / "saved0").exists()
    assert "interrupted; what the script has saved is its own" in out
    assert_nothing_left(run)


def test_a_second_ctrl_c_ends_a_script_at_once(user: User) -> None:
    slow = _SAVES.replace("time.sleep(4)", "print('saving', flush=True); time.sleep(25)")
    with ended(user.airlock("run", script(user.folder, JOIN + slow))) as process:
        run = user.run()
        log = run.rank_log(0, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "saving" in log.read_text(), why="SIGTERM was not passed on")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process, timeout_s=15)
    assert code == 21, err
    assert not (user.folder / "saved0").exists()
    assert_nothing_left(run)


@WARM
def test_a_script_that_failed_is_started_again(user: User, start: str) -> None:
    text = f"""{JOIN}
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(1)
dist.all_reduce(total)
print(f"attempt {{attempt}}: {{total.item():g}} ranks", flush=True)
if attempt == 0 and rank == 1:
    sys.exit("not yet")
dist.barrier()
"""
    path = script(user.folder, text)
    command = ("run", "--max-restarts", "2", "--set", f"launch.start={start}", path)
    out = user.output_of(*command)
    for attempt in (0, 1):
        assert out.count(f"attempt {attempt}: 2 ranks") == 2
    assert "not yet" in out
    assert "airlock: rank 1 ended with exit code 1: restart 1 of 2" in out
    assert read_status(user.run())["attempt"] == 1


# Longer than the launcher would suffer a rank that has failed.
_DONE_EARLY = """
dist.barrier()
if rank == 1:
    os._exit(0)
import time
time.sleep(5)
print("rank 0 has saved", flush=True)
os._exit(0)
"""


@pytest.mark.long
def test_what_a_fork_of_a_rank_ends_with_is_the_ranks_to_judge_and_one_may_be_done_early(
    user: User,
) -> None:
    # Warm, because in a cold one, as under torchrun, gloo's destructor waits in the fork for its
    # threads.
    text = """
    if rank == 1:
        for ending in (lambda: sys.exit(3), lambda: 1 / 0):
            pid = os.fork()
            if pid == 0:
                ending()
            os.waitpid(pid, 0)
    """
    path = script(user.folder, JOIN + textwrap.dedent(text) + _DONE_EARLY)
    out = user.output_of("run", "--set", "launch.start=warm", path, timeout_s=60)
    assert "rank 0 has saved" in out
    run = user.run()
    assert {event["pid"] for event in events_of(run, "end", "script")} <= set(
        rank_pids(run).values()
    )
    assert_nothing_left(run)


@pytest.mark.long
def test_a_rank_that_cannot_write_its_output_leaves_the_gate_all_the_same(user: User) -> None:
    text = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n" + JOIN
    path = script(user.folder, text)
    user.output_of("run", "--set", "launch.admit=serial", path, timeout_s=60)
