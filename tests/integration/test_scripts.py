"""Scripts written for torchrun, unmodified: they see what they see there, and end alike."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from rundir.config_file import read_config
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import User, as_options, assert_nothing_left, ended, events_of, how_started
from tests.scripts import JOIN, WARM, script

_SPEC = importlib.util.find_spec("accelerate")
assert _SPEC is not None
assert _SPEC.origin is not None
ACCELERATE = Path(_SPEC.origin).parent / "test_utils/scripts/test_script.py"
_ON_CPU = {"ACCELERATE_USE_CPU": "1"}  # otherwise it forms no group for ranks without a GPU
TUTORIAL = ROOT / "examples/ddp_tutorial.py"


def test_accelerates_own_test_script_passes(user: User) -> None:
    out = user.output_of("run", str(ACCELERATE), env=_ON_CPU)
    assert "**Test reinstantiated state**" in out
    assert out.count("DistributedType.MULTI_CPU  Backend: gloo\nNum processes: 2") == 2
    run = user.run()
    assert how_started(run) == ("warm", None)
    assert len(events_of(run, "end", "pg.init")) == 2
    assert_nothing_left(run)


def test_the_tutorial_trains_and_goes_on_from_its_snapshot(user: User) -> None:
    command = ("run", "--num-gpus=2", str(TUTORIAL), "--snapshot", "my.pt", "--epochs")
    out = user.output_of(*command, "1")
    assert sorted(re.findall(r"rank (\d): epoch (\d)", out)) == [("0", "1"), ("1", "1")]
    assert (user.folder / "my.pt").exists()
    run = user.run()
    assert re.search(r"ddp_tutorial: done in \d:\d\d\n  host memory   peak \d+ MiB", out)
    assert read_status(run)["phase"] == "done"
    assert "plan" not in out.replace(str(user.folder), "")  # that is of trainings of ours
    assert not run.plan.exists()
    assert not list(run.incidents.iterdir())
    limits = events_of(run, "mark", "limits")
    assert [one["rlimit_as_bytes"] for one in limits] == [None] * 2  # what it needs is not known
    assert len(events_of(run, "end", "pg.init")) == 2
    assert len(events_of(run, "end", "all_loaded.wait")) == 2
    script = shlex.quote(str(TUTORIAL))
    line = f"torchrun --standalone --nproc-per-node=2 {script} --snapshot my.pt --epochs 1"
    assert line in run.command.read_text()
    out = user.output_of(*command, "2")
    assert "rank 0: going on after epoch 1" in out
    assert "rank 1: epoch 2, loss" in out
    assert_nothing_left(run)


@WARM
def test_a_script_finds_itself_as_under_torchrun(user: User, start: str) -> None:
    # With modules of its own that have the names of ours, and children of several kinds.
    folder = user.folder / "work"
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
    threads = as_options("launch.threads_per_rank=2", f"launch.start={start}")
    out = user.output_of("run", *threads, path, "--dry-run", "--lr", "1e-4")
    found = "found the train of the user the launch of the user ['--dry-run', '--lr', '1e-4']"
    assert out.count(f"{found} __main__\n") == 2
    assert out.count("a child finds the train of the user\n") == 2
    assert how_started(user.run()) == (start, None)
    assert_nothing_left(user.run())


@WARM
def test_the_end_of_a_script_is_that_of_a_program(user: User, start: str) -> None:
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
    path = script(user.folder, text)
    out = user.output_of("run", "--set", f"launch.start={start}", path)
    for rank in (0, 1):
        assert 0 < out.index(f"thread {rank}\n") < out.index(f"atexit {rank}\n")
        assert (user.folder / f"file{rank}").read_text() == "all of it"
    assert out.count("no end of line") == 2
    assert not list(user.folder.glob("temporary*"))


def test_output_is_shown_whole_as_it_comes_and_the_configuration_is_read_back_as_it_was(
    user: User,
) -> None:
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
    path = script(user.folder, text)
    args = ("--text", 'quoted "x"\n', "ünïcode", "")
    command = ("run", "--num-gpus=1", "--preload", "numpy,-x", path, *args)
    with ended(user.airlock(*command)) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if line == "first\n":
                (user.folder / "go").touch()
        assert process.wait() == 0
    own = ("[", "airlock", "run", " ", "my_train: done in")
    lines = [line.rstrip("\n") for line in shown if not line.startswith(own)]
    assert lines == ["first", "0%", "50%", "100%", "not \ufffd UTF-8", "the end", ""]
    config = read_config(user.run().config)
    assert config.script is not None
    assert (config.script.path, config.script.args) == (path, args)
    assert config.script.preload == ("numpy", "-x")
    assert config.launch.num_ranks == 1
    started = events_of(user.run(), "start", "zygote.import")
    zygote = started[-1]["pid"]  # torch is imported before there is one
    assert [(e["what"], e["pid"] == zygote) for e in started] == [
        ("torch", False),
        ("torch", True),
        ("numpy", True),
    ]


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
    user: User, args: list[str], said: str
) -> None:
    script(user.folder, "print('ran')\n", "ok.py")
    script(user.folder, "print('ran')\nif x y:\n", "bad.py")
    code, out, err = user.typed("run", *args, env={"CUDA_VISIBLE_DEVICES": ""})
    assert code in (2, 4), out
    assert said in err
    assert "Traceback" not in err
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()


def test_a_dry_run_shows_the_plain_torchrun_line_and_starts_nothing(user: User) -> None:
    path = script(user.folder, "print('ran')\n", "my train.py")
    command = ("run", "--dry-run", "--max-restarts=1", "--num-gpus=3", path, "--lr", "a b")
    out = user.typed.output_of(*command)
    line = f"torchrun --standalone --nproc-per-node=3 --max-restarts=1 '{path}' --lr 'a b'"
    assert out.splitlines()[-1] == line
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in out
    assert "ran" not in out.splitlines()
    assert "[train]" not in out
