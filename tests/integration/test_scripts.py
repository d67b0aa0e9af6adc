"""Scripts written for torchrun, unmodified: they run as there, and fail as plainly as a profile."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rundir.config_file import read_config
from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import (
    assert_nothing_left,
    ended,
    events_of,
    finish,
    rank_pids,
    run_folder,
    wait_for,
    zygote_pid,
)

Start = Callable[..., "subprocess.Popen[str]"]

_SPEC = importlib.util.find_spec("accelerate")
assert _SPEC is not None
assert _SPEC.origin is not None
ACCELERATE = Path(_SPEC.origin).parent / "test_utils/scripts/test_script.py"
_ON_CPU = {"ACCELERATE_USE_CPU": "1"}  # else it makes no group of ranks that have no GPU
TUTORIAL = ROOT / "examples/ddp_tutorial.py"
COLD_IS_LONG = pytest.param("cold", marks=pytest.mark.long)
BOTH = pytest.mark.parametrize("start", ["warm", "cold"])
WARM = pytest.mark.parametrize("start", ["warm", COLD_IS_LONG])

JOIN = """
import os, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
"""


def script(folder: Path, text: str, name: str = "my_train.py") -> str:
    """The path of a script with that text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


def how_started(run: RunDir) -> tuple[str, str | None]:
    event = events_of(run, "mark", "start")[0]
    return event["start"], event["reason"]


def test_accelerates_own_test_script_passes(airlock: Start, environ: dict[str, str]) -> None:
    code, out, err = finish(airlock("run", str(ACCELERATE), env=_ON_CPU))
    assert code == 0, out + err
    assert "**Test reinstantiated state**" in out
    assert out.count("DistributedType.MULTI_CPU  Backend: gloo\nNum processes: 2") == 2
    run = run_folder(environ)
    assert how_started(run) == ("warm", None)
    assert len(events_of(run, "end", "pg.init")) == 2
    assert_nothing_left(run)


@pytest.mark.long
def test_with_four_ranks_accelerates_test_script_does_what_it_does_under_torchrun(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    # That script cannot share 17 rows among 4 ranks: there it fails by itself (accelerate 1.15).
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    plain = subprocess.run(
        [*torchrun, "--nproc-per-node=4", str(ACCELERATE)],
        env=environ | _ON_CPU | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    code, out, _ = finish(airlock("run", "--num-gpus", "4", str(ACCELERATE), env=_ON_CPU))
    assert (code == 0) == (plain.returncode == 0)
    own_mistakes = re.findall(r"AssertionError: .*", plain.stderr)
    assert set(own_mistakes) == set(re.findall(r"AssertionError: .*", out))
    # Ranks that it takes for strangers to each other, as it does without GPUs, all pass.
    code, out, err = finish(airlock("run", "--num-gpus", "4", str(ACCELERATE)))
    assert code == 0, out + err
    assert out.count("**Test reinstantiated state**") == 4


@pytest.mark.parametrize("num", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_tutorial_trains_and_goes_on_from_its_snapshot(
    airlock: Start, environ: dict[str, str], tmp_path: Path, num: int
) -> None:
    command = ("run", f"--num-gpus={num}", str(TUTORIAL), "--snapshot", "my.pt", "--epochs")
    code, out, err = finish(airlock(*command, "1"))
    assert code == 0, out + err
    assert sorted(re.findall(r"rank (\d): epoch (\d)", out)) == [(str(i), "1") for i in range(num)]
    assert (tmp_path / "my.pt").exists()
    run = run_folder(environ)
    assert re.search(r"ddp_tutorial: done in \d:\d\d\n  host memory   peak \d+ MiB", out)
    assert read_status(run)["phase"] == "done"
    assert len(events_of(run, "end", "pg.init")) == num
    assert len(events_of(run, "end", "all_loaded.wait")) == num
    line = f"torchrun --standalone --nproc-per-node={num} {TUTORIAL} --snapshot my.pt --epochs 1"
    assert line in run.command.read_text()
    code, out, err = finish(airlock(*command, "2"))
    assert code == 0, out + err
    assert "rank 0: going on after epoch 1" in out
    assert "rank 1: epoch 2, loss" in out
    assert_nothing_left(run)


@WARM
def test_ranks_pass_the_gate_in_order_and_only_then_join(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    path = script(tmp_path, f"print('before')\n{JOIN}\nprint('after')\ndist.barrier()\n")
    command = ("run", "--num-gpus", "3", "--set", "launch.admit=serial")
    code, out, err = finish(airlock(*command, "--set", f"launch.start={start}", path))
    assert code == 0, out + err
    run = run_folder(environ)
    held = [
        (event["kind"], event["rank"])
        for kind in ("start", "end")
        for event in events_of(run, kind, "lock.hold")
        if event["rank"] is not None
    ]
    times = {
        (kind, event["rank"]): event["mono"]
        for kind in ("start", "end")
        for event in events_of(run, kind, "lock.hold")
        if event["rank"] is not None
    }
    assert len(held) == 6
    assert sorted(times, key=lambda key: times[key]) == [
        (kind, rank) for rank in range(3) for kind in ("start", "end")
    ]
    first_join = min(event["mono"] for event in events_of(run, "start", "pg.init"))
    assert first_join > times["end", 2]
    lines = [re.sub(r" rss=.*", "", line) for line in out.splitlines() if "[Rank 1]" in line]
    assert lines == [
        "[Rank 1] INIT: rank=1/3 local_rank=1", "[Rank 1] MEM:START",
        "[Rank 1] LOCK: waiting for exclusive access...",
        "[Rank 1] LOCK: acquired! Starting initialization...", "[Rank 1] MEM:POST-IMPORT",
        "[Rank 1] MEM:POST-MODEL", "[Rank 1] LOCK: released",
    ]  # fmt: skip
    assert out.count("before\n") == out.count("after\n") == 3


@BOTH
def test_a_script_finds_itself_as_under_torchrun(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    # With modules of its own that have the names of ours, and children of several kinds.
    folder = tmp_path / "work"
    script(folder, "whose = 'the train of the user'\n", "train.py")
    script(folder, "whose = 'the launch of the user'\n", "launch/__init__.py")
    script(folder, "import train; print('a child finds', train.whose)\n", "child.py")
    text = f"""
    import json, logging, multiprocessing, pickle, subprocess, sys, os, __main__
    import launch, train
    from torch.utils.data import DataLoader, Dataset
    class Squares(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            import launch
            return index * index, launch.whose, os.environ.get("PYTHONPATH", "none")
    def main():
        {"".join(f"{line}; " for line in JOIN.strip().splitlines() if line)}
        print("found", train.whose, launch.whose, sys.argv[1:], __name__)
        assert sys.path[0] == os.path.dirname(__file__) and {str(ROOT)!r} not in sys.path
        assert not [name for name in sys.modules if name.startswith(("rundir", "launch."))]
        assert __main__.Squares is Squares and sys.modules["__main__"].__spec__ is None
        assert type(pickle.loads(pickle.dumps(Squares()))) is Squares
        assert multiprocessing.current_process().name == "MainProcess"
        assert multiprocessing.parent_process() is None
        assert "PYTHONPATH" not in os.environ and "PYTHONSAFEPATH" not in os.environ
        assert "HF_HUB_OFFLINE" not in os.environ
        assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"]) == 2
        for method in ("fork", "spawn", "forkserver"):
            loader = DataLoader(Squares(), num_workers=1, multiprocessing_context=method)
            rows = [(int(s), *whose, *path) for s, whose, path in loader]
            assert rows == [(i * i, "the launch of the user", "none") for i in range(4)], rows
        dist.barrier()
        child = os.path.join(os.path.dirname(__file__), "child.py")
        subprocess.run([sys.executable, child], check=True)
    if __name__ == "__main__":
        main()
    """
    path = script(folder, text)
    threads = ("--set", "launch.threads_per_rank=2", "--set", f"launch.start={start}")
    code, out, err = finish(airlock("run", *threads, path, "--dry-run", "--lr", "1e-4"))
    assert code == 0, out + err
    found = "found the train of the user the launch of the user ['--dry-run', '--lr', '1e-4']"
    assert out.count(f"{found} __main__\n") == 2
    assert out.count("a child finds the train of the user\n") == 2
    assert how_started(run_folder(environ)) == (start, None)
    assert_nothing_left(run_folder(environ))


@BOTH
def test_the_end_of_a_script_is_that_of_a_program(
    airlock: Start, tmp_path: Path, start: str
) -> None:
    text = """
    import atexit, os, sys, tempfile, threading, time
    rank = os.environ["RANK"]
    atexit.register(lambda: print(f"atexit {rank}"))
    threading.Thread(target=lambda: (time.sleep(1), print(f"thread {rank}"))).start()
    left_open = open(f"file{rank}", "w")
    left_open.write("all of it")
    temporary = tempfile.TemporaryDirectory(dir=".", prefix="temporary")
    print("no end of line", end="")
    """
    path = script(tmp_path, text)
    code, out, err = finish(airlock("run", "--set", f"launch.start={start}", path))
    assert code == 0, out + err
    for rank in (0, 1):
        assert f"thread {rank}\natexit {rank}\n" in out.replace("no end of line", "")
        assert (tmp_path / f"file{rank}").read_text() == "all of it"
    assert out.count("no end of line") == 2
    assert not list(tmp_path.glob("temporary*"))


@WARM
def test_a_script_that_never_joins_runs_on_all_ranks_at_once(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    text = """
    import os, time
    from pathlib import Path
    rank = int(os.environ["RANK"])
    Path(f"here{rank}").touch()
    while not Path(f"here{1 - rank}").exists():
        time.sleep(0.1)
    """
    path = script(tmp_path, text)
    command = ("run", "--set", f"launch.start={start}", "--set", "launch.admit=serial", path)
    code, out, err = finish(airlock(*command), timeout_s=100)
    assert code == 0, out + err
    assert out.count("[Rank 0] LOCK: its memory has not grown for 10 s\n") == 1
    assert not events_of(run_folder(environ), "start", "pg.init")


def test_ranks_that_meet_at_a_store_of_their_own_do_not_wait_for_each_other_at_the_gate(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    text = """
    import os, torch.distributed as dist
    from torch.distributed import init_process_group
    rank, file = int(os.environ["RANK"]), os.path.abspath("store")
    store = dist.FileStore(file, 2)
    store.set(f"here{rank}", "yes")
    store.wait([f"here{1 - rank}"])
    assert isinstance(store, dist.FileStore)
    init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.barrier()
    """
    code, out, err = finish(airlock("run", script(tmp_path, text)), timeout_s=60)
    assert code == 0, out + err
    assert "has not grown" not in out
    assert len(events_of(run_folder(environ), "end", "pg.init")) == 2


def test_joining_again_after_leaving_works(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    again = 'dist.destroy_process_group()\ndist.init_process_group("gloo")\ndist.barrier()\n'
    path = script(tmp_path, JOIN + again)
    code, out, err = finish(airlock("run", "--num-gpus", "1", path))
    assert code == 0, out + err
    assert len(events_of(run_folder(environ), "end", "pg.init")) == 2
    assert len(events_of(run_folder(environ), "end", "lock.hold", rank=0)) == 1


@WARM
def test_the_gate_can_be_passed_again_to_load_a_model(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    text = f"""{JOIN}
import airlock, time
for _ in range(2):
    with airlock.gate():
        print(f"load {{rank}}", flush=True)
        time.sleep(0.3)
        print(f"loaded {{rank}}", flush=True)
    dist.barrier()
"""
    path = script(tmp_path, text)
    code, out, err = finish(airlock("run", "--set", f"launch.start={start}", path))
    assert code == 0, out + err
    order = [line for line in out.splitlines() if line.startswith("load")]
    both = ["load 0", "loaded 0", "load 1", "loaded 1"]
    assert sorted(order) == sorted(both * 2)
    run = run_folder(environ)
    for rank in (0, 1):
        assert len(events_of(run, "mark", "mem.post_model", rank)) == 3
        assert len(events_of(run, "end", "all_loaded.wait", rank)) == 3
    holds = [
        (event["mono"], kind, event["rank"])
        for kind in ("start", "end")
        for event in events_of(run, kind, "lock.hold")
        if event["rank"] is not None
    ]
    inside = [f"{kind} {rank}" for _, kind, rank in sorted(holds)]
    assert inside == ["start 0", "end 0", "start 1", "end 1"] * 3


def test_under_plain_python_passing_the_gate_again_does_nothing(tmp_path: Path) -> None:
    program = "import airlock\nwith airlock.gate():\n    print('loaded')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "api")},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "loaded\n"


@BOTH
def test_an_exception_is_told_as_python_tells_it_and_ends_the_run(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
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
    path = script(tmp_path, text)
    with ended(airlock("run", "--set", f"launch.start={start}", path)) as process:
        code, out, err = finish(process, timeout_s=60)
    assert code == 10, out + err
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
    assert_nothing_left(run_folder(environ))


@pytest.mark.parametrize(
    ("start", "how"),
    [("warm", "sys.exit(3)"), ("cold", "sys.exit(3)"),
     pytest.param("warm", "os._exit(3)", marks=pytest.mark.long)],
)  # fmt: skip
def test_the_exit_code_of_a_rank_is_named(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str, how: str
) -> None:
    path = script(tmp_path, f"{JOIN}\nif rank == 1:\n    {how}\ndist.barrier()\n")
    with ended(airlock("run", "--set", f"launch.start={start}", path)) as process:
        code, out, err = finish(process, timeout_s=60)
    assert code == 10, out + err
    assert "airlock: the run failed: rank 1 ended with exit code 3" in out
    assert_nothing_left(run_folder(environ))


@pytest.mark.parametrize(
    ("start", "how"),
    [("warm", "os._exit(0)"), ("cold", "sys.exit(0)"),
     pytest.param("warm", "sys.exit(0)", marks=pytest.mark.long)],
)  # fmt: skip
def test_a_rank_that_is_done_early_leaves_the_others_to_their_work(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str, how: str
) -> None:
    text = f"""{JOIN}
dist.barrier()
if rank == 1:
    {how}
import time
time.sleep(5)
print("rank 0 has saved")
{how}
"""
    path = script(tmp_path, text)
    code, out, err = finish(airlock("run", "--set", f"launch.start={start}", path), timeout_s=60)
    assert code == 0, out + err
    assert "rank 0 has saved" in out
    assert_nothing_left(run_folder(environ))


@WARM
def test_a_rank_killed_in_a_script_ends_the_run(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    # The other one does not mind SIGTERM, and torch alone would give it 30 s.
    text = f"{JOIN}\nimport signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    path = script(tmp_path, text + "print('ready', flush=True)\ntime.sleep(1000)\n")
    with ended(airlock("run", "--set", f"launch.start={start}", path)) as process:
        run = run_folder(environ)
        log = run.rank_log(1, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        assert read_status(run)["phase"] in ("starting", "training")
        os.kill(rank_pids(run)[1], signal.SIGKILL)
        code, out, _ = finish(process, timeout_s=25)
    assert code == 10
    assert "rank 1 killed by SIGKILL" in out
    assert_nothing_left(run)


@pytest.mark.parametrize("victim", ["launch", "zygote"])
def test_nothing_outlives_a_run_of_a_script_that_is_killed(
    airlock: Start, environ: dict[str, str], tmp_path: Path, victim: str
) -> None:
    text = f"""{JOIN}
import subprocess, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
time.sleep(1000)
"""
    with ended(airlock("run", script(tmp_path, text))) as process:
        run = run_folder(environ)
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


def test_ctrl_c_reaches_a_script_as_sigterm_and_gives_it_time(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    with ended(airlock("run", script(tmp_path, JOIN + _SAVES))) as process:
        run = run_folder(environ)
        log = run.rank_log(0, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process, timeout_s=40)
    assert code == 21, out + err
    assert "saved 0" in out
    assert (tmp_path / "saved0").exists()
    assert "interrupted; what the script has saved is its own" in out
    assert_nothing_left(run)


def test_a_second_ctrl_c_ends_a_script_at_once(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    slow = _SAVES.replace("time.sleep(4)", "print('saving', flush=True); time.sleep(25)")
    with ended(airlock("run", script(tmp_path, JOIN + slow))) as process:
        run = run_folder(environ)
        log = run.rank_log(0, 0)
        wait_for(lambda: log.exists() and "ready" in log.read_text(), why="it is not ready")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "saving" in log.read_text(), why="SIGTERM was not passed on")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process, timeout_s=15)
    assert code == 21, err
    assert not (tmp_path / "saved0").exists()
    assert_nothing_left(run)


@WARM
def test_a_script_that_failed_is_started_again(
    airlock: Start, environ: dict[str, str], tmp_path: Path, start: str
) -> None:
    text = f"""{JOIN}
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(1)
dist.all_reduce(total)
print(f"attempt {{attempt}}: {{total.item():g}} ranks", flush=True)
if attempt == 0 and rank == 1:
    sys.exit("not yet")
dist.barrier()
"""
    path = script(tmp_path, text)
    command = ("run", "--max-restarts", "2", "--set", f"launch.start={start}", path)
    code, out, err = finish(airlock(*command))
    assert code == 0, out + err
    for attempt in (0, 1):
        assert out.count(f"attempt {attempt}: 2 ranks") == 2
    assert "not yet" in out
    assert "airlock: rank 1 ended with exit code 1: restart 1 of 2" in out
    assert read_status(run_folder(environ))["attempt"] == 1


def test_what_must_not_be_loaded_before_a_fork_makes_the_start_cold_and_is_named(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    (site / "x.dist-info").mkdir(parents=True)  # installed there, not the user's own
    (site / "threads.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    (site / "ranked.py").write_text("import os\nrank = os.environ.get('RANK')\n")
    (site / "broken.py").write_text("raise ImportError('only with a licence')\n")
    env = {"PYTHONPATH": f"{environ['PYTHONPATH']}:{site}"}
    guarded = "try:\n    import broken\nexcept ImportError:\n    broken = None\n"
    for module, said in (
        ("threads", "after importing threads, it has 2 threads"),
        ("ranked", "ranked asked for RANK when it was imported"),
    ):
        path = script(tmp_path, f"{guarded}import {module}\n{JOIN}\n")
        code, out, err = finish(airlock("run", path, env=env))
        assert code == 0, out + err
        assert "IMPORT: broken is left to the script: ImportError: only with a licence" in out
        start, reason = how_started(run_folder(environ))
        assert start == "cold"
        assert reason is not None
        assert reason.startswith(said)
        assert reason.endswith(f"--preload -{module} leaves it out")
        code, out, err = finish(airlock("run", "--preload", f"-{module}", path, env=env))
        assert code == 0, out + err
        assert how_started(run_folder(environ)) == ("warm", None)


def test_variables_that_a_script_sets_are_there_when_its_libraries_load(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    (site / "x.dist-info").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (site / f"{name}.py").write_text("import os\nhome, pid = os.environ['HOME'], os.getpid()\n")
    text = """
    import os
    home = os.environ["HOME"]
    import one
    os.environ["HOME"] = "/somewhere"
    import two
    os.environ["HOME"] = "/" + os.environ["RANK"]
    import three
    shared = [module.pid != os.getpid() for module in (one, two, three)]
    print("homes", one.home == home, two.home, three.home, shared)
    """
    env = {"PYTHONPATH": f"{environ['PYTHONPATH']}:{site}"}
    code, out, err = finish(airlock("run", script(tmp_path, text), env=env))
    assert code == 0, out + err
    for rank in (0, 1):
        assert f"homes True /somewhere /{rank} [True, True, False]\n" in out


def test_output_is_shown_whole_as_it_comes(airlock: Start, tmp_path: Path) -> None:
    text = """
    import os, sys, time
    print("first", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.1)
    for percent in range(0, 101, 50):
        sys.stderr.write(f"\\r{percent}%")
    sys.stderr.write("\\n")
    os.write(1, b"not \\xff UTF-8\\n")
    os.write(2, b"the end")
    """
    with ended(airlock("run", "--num-gpus", "1", script(tmp_path, text))) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if line == "first\n":
                (tmp_path / "go").touch()
        assert process.wait() == 0
    own = ("[", "airlock", "run", " ", "my_train: done in")
    lines = [line.rstrip("\n") for line in shown if not line.startswith(own)]
    assert lines == ["first", "0%", "50%", "100%", "not \ufffd UTF-8", "the end", ""]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere.py"], "cannot read the script"),
        (["--data", "x.jsonl", "ok.py"], "--data means nothing to a script"),
        (["--resume", "latest", "ok.py"], "--resume means nothing to a script"),
        (["--set", "train.max_steps=3", "ok.py"], "train.max_steps=3 means nothing to a script"),
        (["--preload", "a b", "ok.py"], "names no module"),
        (["--preload", "numpy", "tiny"], "--preload is for scripts"),
        (["bad.py"], "line 2: invalid syntax"),
        (["--set", "launch.nothing=1", "ok.py"], "unknown key"),
        (["--set", "launch.device=cuda", "ok.py"], "needs an NVIDIA GPU"),
    ],
)
def test_what_a_script_cannot_be_started_with_is_said_before_anything_starts(
    airlock: Start, environ: dict[str, str], tmp_path: Path, args: list[str], said: str
) -> None:
    script(tmp_path, "print('ran')\n", "ok.py")
    script(tmp_path, "print('ran')\nif x y:\n", "bad.py")
    code, out, err = finish(airlock("run", *args, env={"CUDA_VISIBLE_DEVICES": ""}))
    assert code in (2, 4), out
    assert said in err
    assert "Traceback" not in err
    assert not Path(environ["AIRLOCK_RUNS_DIR"]).exists()


def test_a_dry_run_shows_the_plain_torchrun_line_and_starts_nothing(
    airlock: Start, tmp_path: Path
) -> None:
    path = script(tmp_path, "print('ran')\n", "my train.py")
    command = ("run", "--dry-run", "--max-restarts=1", "--num-gpus=3", path, "--lr", "a b")
    code, out, _ = finish(airlock(*command))
    assert code == 0
    line = f"torchrun --standalone --nproc-per-node=3 --max-restarts=1 '{path}' --lr 'a b'"
    assert out.splitlines()[-1] == line
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in out
    assert "ran" not in out.splitlines()
    assert "[train]" not in out


def test_the_configuration_of_a_script_is_read_back_as_it_was(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    path = script(tmp_path, "pass\n")
    args = ("--text", 'quoted "x"\n', "ünïcode", "")
    code, _, err = finish(airlock("run", "--num-gpus=1", "--preload", "numpy,-x", path, *args))
    assert code == 0, err
    config = read_config(run_folder(environ).config)
    assert config.script is not None
    assert (config.script.path, config.script.args) == (path, args)
    assert config.script.preload == ("numpy", "-x")
    assert config.launch.num_ranks == 1
    imported = [e["what"] for e in events_of(run_folder(environ), "start", "zygote.import")]
    assert imported == ["torch", "numpy"]
