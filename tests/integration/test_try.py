"""Talking to the model of a run: once, from a file, at a terminal, and beside its base."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rundir.checkpoints import MARKER, complete_checkpoints
from rundir.paths import RunDir
from rundir.status import Status, write_status
from tests.launch.run_folders import trained_run
from tests.running import SHORT, User, as_options, events_of, here

_FEW = ("--max-new-tokens", "8")
# Few steps, but such that the model no longer says what its base does.
_LOUD = as_options("train.learning_rate=0.02", "train.warmup_steps=0")


def trained(user: User, *settings: str) -> RunDir:
    out = user.output_of(*SHORT, *_LOUD, "--set", "data.eval_path=", *settings)
    assert "exported      step 4, the last: no held-out loss was measured" in out
    assert f"./airlock try {user.run().run_id}" in out.replace("runs/", "")
    return user.run()


def tried(user: User, run: RunDir, *args: str) -> str:
    code, out, err = user.finish("try", run.run_id, *_FEW, *args)
    assert (code, err) == (0, "")
    return out


def greedy(folder: Path, prompt: str) -> str:
    """Return what transformers itself makes of the folder, with the chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    load: Any = AutoModelForCausalLM.from_pretrained
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = load(folder).eval()
    chat = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    made = model.generate(**ids, max_new_tokens=8, do_sample=False)
    answer: str = tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    return answer


def assert_adapters_are_merged(run: RunDir) -> None:
    """Fail unless only adapters were trained and saved, and the model exported has none."""
    plan = events_of(run, "mark", "train.plan")[0]
    assert 0 < plan["num_trainable"] < plan["num_parameters"] / 2
    exported, saved = run.model, complete_checkpoints(run.checkpoints)[-1]
    assert not [key for key in load_file(exported / "model.safetensors") if "lora" in key]
    adapters = load_file(saved / "model.safetensors")
    assert adapters
    assert all("lora" in key for key in adapters)


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.long)])
def test_it_answers_as_the_exported_model_does_and_beside_the_base(user: User, method: str) -> None:
    run = trained(user, *as_options(f"train.method={method}", "model.gradient_checkpointing=true"))
    if method == "lora":
        assert_adapters_are_merged(run)
    answer = greedy(run.model, "upper ab")
    assert tried(user, run, "upper ab") == answer + "\n"
    base, after = tried(user, run, "upper ab", "--beside-base").rstrip("\n").split("\ntrained: ")
    assert base.startswith("base: ")
    assert base.removeprefix("base: ") != after
    assert after == answer


@pytest.mark.long
def test_a_file_of_prompts_is_answered_line_by_line(user: User) -> None:
    import subprocess

    run = trained(user)
    command = [sys.executable, "-P", "-m", "launch", "try", str(run.path), *_FEW]
    typed = "upper ab\n\n/new\nupper ab\n/quit\nnever\n"
    done = subprocess.run(
        command,
        input=typed,
        env=user.environ,
        capture_output=True,
        text=True,
        cwd=user.folder,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == second  # a new conversation is as the first


@pytest.mark.long
def test_adapters_alone_answer_on_their_base_and_ctrl_c_ends_an_answer_only(user: User) -> None:
    adapters = as_options("train.method=lora", "train.merge_adapters=false")
    run = trained(user, *adapters)
    command = [sys.executable, "-P", "-m", "launch", "try", str(run.path)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], [*command, "--max-new-tokens", "200"], user.environ)  # noqa: S606
    try:
        _until(terminal, b"Ctrl-D leaves.")
        _until(terminal, b"> ")
        os.write(terminal, b"upper ab\n")
        _until(terminal, b"upper ab\r\n")
        os.write(terminal, b"\x03")
        _until(terminal, b"> ")
        os.write(terminal, b"/quit\n")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)


def _until(terminal: int, words: bytes, timeout_s: float = 120.0) -> None:
    seen, until = b"", time.monotonic() + timeout_s
    while words not in seen:
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 1)


def test_a_run_without_a_model_says_what_to_do(user: User) -> None:
    runs = Path(user.environ["AIRLOCK_RUNS_DIR"])
    run = trained_run(runs / "20261120-221500-tiny-3f2a")
    for args, words, do in (
        (("nothing", "a"), "no run 'nothing'", f"ls {runs}"),
        ((run.run_id, "a"), "nothing was saved", f"→ {here('start.sh')} tiny\n"),
    ):
        err = user.error_of("try", *args)
        assert words in err
        assert do in err
    write_status(run, Status(run_id=run.run_id, profile="tiny", phase="training"))
    checkpoint = run.checkpoints / "step_00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / MARKER).touch()
    err = user.error_of("try", run.run_id, "a")
    assert "has no model: its launcher died while it was training" in err
    assert f"→ ./airlock doctor runs/{run.run_id}" in err
    assert f"→ {here('start.sh')} tiny --resume runs/{run.run_id}" in err
    run.model.mkdir()
    err = user.error_of("try", run.run_id, "a", "--beside-base")
    assert "the base model of" in err
    assert f"--again runs/{run.run_id} --prepare-only" in err
