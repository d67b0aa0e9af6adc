"""Flags of other launchers and training scripts are answered with the command that does it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from launch.commands import cli
from launch.config.flag_table import unread_variables
from launch.config.resolve import resolve
from rundir.paths import ROOT
from tests.running import Typed, User, finish

# What is typed after `./start.sh`, and what the answer says to type instead.
COMMANDS = {
    "tiny --max_samples 100 --data 'my data.jsonl'": "./start.sh tiny --data 'my data.jsonl' "
    "--set data.max_samples=100",
    "tiny --num_epochs 2": "./start.sh tiny --set train.epochs=2 --set train.max_steps=0",
    "tiny --max_length 512": "./start.sh tiny --set data.max_seq_length=512",
    "tiny --batch_size 4": "./start.sh tiny --set train.micro_batch_size=4",
    "tiny --learning_rate 1e-4": "./start.sh tiny --set train.learning_rate=1e-4",
    "tiny --eval_steps 10": "./start.sh tiny --set train.eval_every_steps=10",
    "tiny --save_steps 20": "./start.sh tiny --set train.checkpoint_every_steps=20",
    "tiny --model Qwen/Qwen3-0.6B": "./start.sh tiny --set model.path=Qwen/Qwen3-0.6B",
    "tiny --max-steps 7": "./start.sh tiny --set train.max_steps=7",
    "tiny '--output_dir=my out' --lr=1e-3 --name a --packing": "'AIRLOCK_RUNS_DIR=my out' "
    "./start.sh tiny --name a --set train.learning_rate=1e-3 --set data.packing=true",
    "tiny --nproc_per_node 8": "./start.sh tiny --num-gpus 8",
    "--nnodes 2 --nproc_per_node=4 a.py --bf16": "./start.sh --num-gpus 4 a.py --bf16",
    "--num_processes 4 --mixed_precision bf16 a.py": "./start.sh --num-gpus 4 a.py",
    "--batch_size 4 --bf16 a.py --x": "./start.sh a.py --x --batch_size 4 --bf16",
    "tiny --dataset owner/name": "./start.sh tiny --data hf:owner/name",
    "tiny --dataset my.jsonl": "./start.sh tiny --data my.jsonl",
    "tiny --dataset my.jsonl --eval my.jsonl": ""
    "./start.sh tiny --data my.jsonl --set data.eval_path=my.jsonl",
    "tiny --eval --seed 1": "./start.sh tiny --set train.seed=1",
    "--config a/my.yaml --name x": "./start.sh a/my.toml --name x",
    "tiny --train_file data/my.jsonl": "./start.sh tiny --data data/my.jsonl",
    "tiny --resume_from_checkpoint runs/a-b/checkpoints/step_00000100": ""
    "./start.sh tiny --resume runs/a-b",
    "tiny --resume_from_checkpoint True": "./start.sh tiny --resume latest",
    "tiny --bf16 --seed 1": "./start.sh tiny --set model.dtype=bfloat16 --set train.seed=1",
    "--bf16 tiny": "./start.sh tiny --set model.dtype=bfloat16",
    "--packing tiny": "./start.sh tiny --set data.packing=true",
    "tiny --bf16 False": "./start.sh tiny",
    "tiny --use_lora --lora_r 8": "./start.sh tiny --set train.method=lora --set train.lora_rank=8",
    "tiny --load_in_4bit": "./start.sh tiny --set train.method=qlora",
    "tiny --optim adamw_torch": "./start.sh tiny --set train.optimizer=adamw",
    "tiny --deepspeed ds.json": "./start.sh tiny",
    "tiny --fsdp full_shard --verbose": "./start.sh tiny",
    "tiny --dry_run": "./start.sh tiny --dry-run",
    "tiny --run_name a": "./start.sh tiny --name a",
    "--model tiny": "./start.sh tiny",
    "--profile tiny --force": "./start.sh tiny --force",
    "--config my.toml": "./start.sh my.toml",
    "tiny --gpu_ids 0,1": "CUDA_VISIBLE_DEVICES=0,1 ./start.sh tiny",
    "tiny --warmup_ratio 0.1 --max_steps 50": "./start.sh tiny --set train.max_steps=50 "
    "--set train.warmup_steps=5",
    "tiny --batch_size 4 --gradient_accumulation_steps 8 --num_processes 2": ""
    "./start.sh tiny --num-gpus 2 "
    "--set train.micro_batch_size=4 --set train.global_batch_size=64",
}


@pytest.mark.parametrize("typed", COMMANDS)
def test_a_command_line_of_another_launcher_is_answered_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    monkeypatch.setenv("AIRLOCK_SCRIPT", "./start.sh")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(SystemExit, match="2"):
        cli.airlock(["run", *shlex.split(typed)])
    err = capsys.readouterr().err
    first, do = err.split("\n  → ")
    assert first.startswith("airlock: no option --")
    words = shlex.split(do, comments=True)
    assert words == shlex.split(COMMANDS[typed])
    settings = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    resolve("tiny", settings, {})  # they are settings


def test_what_shards_the_model_is_left_out_and_what_there_is_instead_is_said(
    typed: Typed,
) -> None:
    _, _, err = typed("run", "tiny", "--deepspeed", "ds.json")
    assert "--deepspeed is left out" in err
    assert "Airlock trains with DDP" in err
    assert "train.shard_optimizer=true" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [(("tiny", "--nonsense"), "'--nonsense'"), (("--num-gpus", "x"), "'x' is not a valid integer")],
)
def test_what_is_like_nothing_is_answered_with_the_help(
    typed: Typed, args: tuple[str, ...], words: str
) -> None:
    err = typed.error_of("run", *args)
    assert words in err
    assert err.splitlines()[1].startswith("  → ./start.sh --help ")


def test_one_process_answers_them_too_and_more_ranks_with_the_launcher(user: User) -> None:
    code, _, err = finish(user.plain("tiny", "--max_samples", "20", "--seed=3"))
    assert code == 2
    program = shlex.quote(f"{ROOT}/airlock")
    expected = f"{program} run tiny --plain --set data.max_samples=20 --set train.seed=3"
    assert err.splitlines()[1] == f"  → {expected}"
    _, _, err = user.typed("run", "tiny", "--plain", "--nproc_per_node", "8")
    assert err.splitlines()[1] == "  → ./start.sh tiny --num-gpus 8"


def test_a_plan_answers_them_and_leaves_out_what_it_has_not(typed: Typed) -> None:
    err = typed.error_of("plan", "32b", "--batch_size", "2", "--run_name", "a")
    assert shlex.split(err.split("→ ")[1], comments=True) == [
        *("./airlock", "plan", "32b"),
        *("--set", "train.micro_batch_size=2"),
    ]


def test_flags_after_a_script_are_the_scripts(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    out = typed.output_of("run", "--dry-run", "a.py", "--max_samples", "3")
    assert "a.py --max_samples 3" in out


def test_a_setting_in_a_variable_is_answered_with_its_option_and_other_variables_are_none() -> None:
    environ = {"MAX_SAMPLES": "20", "DATA_PATH": "x.jsonl", "NUM_EPOCHS": "", "PATH": "/bin"}
    assert unread_variables(environ) == [
        "airlock: DATA_PATH=x.jsonl is not read; here it is --data x.jsonl",
        "airlock: MAX_SAMPLES=20 is not read; here it is --set data.max_samples=20",
    ]


def test_the_work_of_a_rank_typed_as_a_script_says_what_to_type(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "train/worker.py")],  # as torchrun would start it
        env=environ | {"RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "worker.py is what a rank does after the gate" in done.stderr
    assert "./start.sh 32b" in done.stderr
    assert "ModuleNotFoundError" not in done.stderr


# What torchrun or accelerate launch is given for a script, and what is said of it.
UNDERSTOOD = {
    "--nproc-per-node 3 --standalone a.py --lr 1": "--nproc-per-node is --num-gpus; "
    "--standalone is left out: the ranks are of one node, and meet without an address",
    "--nnodes=1 --node_rank 0 --nproc_per_node=3 --master_port 1 a.py": "--nnodes is left out; ",
    "--num_processes 3 --num_machines 1 a.py": "--num_processes is --num-gpus; ",
    "--nproc-per-node 3 -m a --lr 1": "--nproc-per-node is --num-gpus",
}


@pytest.mark.parametrize("line", UNDERSTOOD)
@pytest.mark.parametrize("command", [("run",), ()])
def test_what_torchrun_is_told_of_ranks_is_understood_before_a_script(
    typed: Typed, tmp_path: Path, command: tuple[str, ...], line: str
) -> None:
    (tmp_path / "a.py").touch()
    code, out, err = typed(*command, "--dry-run", *line.split())
    assert code == 0, err
    assert err.startswith(f"airlock: {UNDERSTOOD[line]}")
    assert ", 3 ranks on " in out
    assert ("--lr 1" in out) == line.endswith("--lr 1")
