"""A profile without data: its checks, what to type, and the demo; all errors at once."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import fake_drivers
from tests.running import Start, Typed, User, here, output_of

HAS_GPU = Path("/proc/driver/nvidia/version").exists()
on_cpu = pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
NO_DATA = ("run", "tiny", "--set", "data.path=")


@pytest.fixture
def pretended(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine with eight GPUs of 24 GiB, as far as NVML tells."""
    sizes = {f"NVML_TOTAL_MIB_{index}": "24576" for index in range(8)}
    return fake_drivers.nvml(tmp_path) | {"NVML_COUNT": "8"} | sizes


@pytest.mark.runs
def test_without_data_the_checks_run_first_and_then_what_to_type_is_said(user: User) -> None:
    code, out, err = user.finish(*NO_DATA)
    assert code == 2, out + err
    headings = ("import test (", "single-GPU test (", "plan: does it fit?")
    places = [out.index(heading) for heading in headings]
    assert places == sorted(places)
    assert "ok    train.worker" in out
    assert "ok    loss: " in out
    assert "fits: the host needs" in out
    assert "tiny names no training data" in err
    typed = shlex.join(["./start.sh", *NO_DATA[1:]])
    assert f"  → {typed} --data FILE.jsonl " in err
    assert f"  → {typed} --demo " in err
    assert not Path(user.environ["AIRLOCK_RUNS_DIR"]).exists()


@pytest.mark.runs
def test_a_check_that_fails_is_said_with_the_lack_of_data_and_ends_with_4(user: User) -> None:
    (user.folder / "peft.py").write_text("raise ImportError('this is not peft')")
    env = {"PYTHONPATH": f"{user.environ['PYTHONPATH']}:{user.folder}", "RUN_SINGLE_GPU_TEST": "0"}
    code, out, err = user.finish(*NO_DATA, env=env)
    assert code == 4
    assert "FAIL  peft: ImportError: this is not peft" in out
    assert "the import test (diagnostics.imports) failed with exit code 4" in err
    assert "tiny names no training data" in err
    assert "plan: does it fit?" in out, "the checks go on"


@pytest.mark.parametrize(
    "args",
    [("run", "tiny"), NO_DATA, pytest.param(("run", "tiny", "--dry-run"), marks=pytest.mark.long)],
)
def test_a_test_that_is_neither_on_nor_off_ends_it(typed: Typed, args: tuple[str, ...]) -> None:
    code, out, err = typed(*args, env={"RUN_IMPORT_TEST": "banana"})
    assert code == 2
    assert "RUN_IMPORT_TEST='banana' is neither on (1, true, yes, on) nor off (0, false" in err
    assert "ok    torch" not in out


@pytest.mark.runs
def test_a_dry_run_names_the_tests_that_come_first_and_shows_what_was_found(typed: Typed) -> None:
    out = typed.output_of("run", "tiny", "--dry-run", env={"RUN_IMPORT_TEST": "yes"})
    assert "import test (RUN_IMPORT_TEST=yes): can all" in out
    assert "single-GPU test: off (not asked for; RUN_SINGLE_GPU_TEST=1 turns it on)" in out
    found = out.partition("\nthis machine:\n")[2].partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in found} <= {"ok", "warning"}
    assert "ok       localhost: 127.0.0.1 answers" in found


@on_cpu
def test_a_dry_run_without_a_gpu_shows_all_it_can_and_all_errors(typed: Typed) -> None:
    code, out, err = typed("run", "32b", "--dry-run")
    assert code == 4
    for shown in (
        "airlock: 32b, 8 ranks on cuda (a node of eight, as none is visible)",
        "no GPU here, and none named (--gpu H100-80G); on one of:",
        'path = "Qwen/Qwen2.5-32B"  # profile 32b.toml',
        "before the ranks are started:",
        "torchrun --nnodes=1 --nproc-per-node=8",
    ):
        assert shown in out
    assert "CUDA_VISIBLE_DEVICES" not in out
    assert "32b needs an NVIDIA GPU and none is visible\n  → ./airlock plan 32b --gpu H100" in err
    assert "32b names no training data\n" in err
    assert "Traceback" not in err


@on_cpu
def test_a_run_without_a_gpu_and_data_says_both_and_which_checks_need_none(typed: Typed) -> None:
    settings = ("--num-gpus", "4", "--set", "train.method=qlora")
    code, out, err = typed("run", "32b", *settings, env={"AIRLOCK_SCRIPT": "./start.sh"})
    assert (code, out) == (4, "")
    commands = [line.partition("   #")[0] for line in err.splitlines() if "→" in line]
    plan = f"{here('airlock')} plan 32b --num-gpus 4 --gpu H100-80G --set train.method=qlora"
    check = f"{here('airlock')} check imports --profile 32b --set=train.method=qlora"
    assert commands[:2] == [f"  → {plan}", f"  → {check}"]
    assert f"`{here('airlock')} check basic`" in err
    assert "32b names no training data" in err


def test_too_few_gpus_and_no_data_are_said_at_once(typed: Typed, pretended: dict[str, str]) -> None:
    err = typed.error_of("run", "32b", env=pretended | {"NUM_GPUS": "9"})
    assert "NUM_GPUS=9 asks for 9 ranks; 8 GPUs are visible" in err
    assert "32b names no training data" in err


@pytest.mark.runs
def test_a_demo_that_may_fit_is_of_the_whole_model(typed: Typed, pretended: dict[str, str]) -> None:
    large = {name: "183359" for name in pretended if name.startswith("NVML_TOTAL_MIB")}
    out = typed.output_of("run", "32b", "--demo", "--dry-run", env=pretended | large)
    assert "airlock: demo: the whole model, 5 steps" in out
    assert "num_hidden_layers = 64" in out
    assert 'path = "Qwen/Qwen2.5-32B"' in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", "tiny", "--demo", "--resume", "latest"), "--demo starts anew"),
        (("run", "--demo", "ok.py"), "--demo means nothing to a script"),
    ],
)
def test_a_demo_of_what_has_none_is_refused(user: User, args: tuple[str, ...], says: str) -> None:
    (user.folder / "ok.py").write_text("")
    err = user.typed.error_of(*args)
    assert says in err


@pytest.mark.runs
def test_a_demo_trains_a_few_steps_and_says_before_and_after_what_it_is(airlock: Start) -> None:
    small = ("--set", "train.max_steps=2", "--set", "launch.admit=open")
    out = output_of(airlock("run", "tiny", "--demo", *small))
    assert "step 2/2" in out
    assert out.count("airlock: demo: the whole model") == 2


@pytest.mark.long
@on_cpu
@pytest.mark.timeout(1800)
def test_the_demo_of_a_large_profile_trains_two_layers_where_there_is_no_gpu(user: User) -> None:
    small = ("--num-gpus", "1", "--set", "train.max_steps=1", "--set", "train.global_batch_size=1")
    cache = {"AIRLOCK_CACHE_DIR": str(user.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    out = user.output_of("run", "14b", "--demo", *small, env=cache, timeout_s=1700)
    assert "step 1/1" in out
    assert out.count("CUT DOWN: 2 of the 48 layers of 14b") == 2
    assert "try it" not in out  # its adapters belong to weights that no file has
