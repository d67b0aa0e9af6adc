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

from rundir.checkpoints import MARKER
from rundir.paths import RunDir
from rundir.status import Status, write_status
from tests.launch.run_folders import trained_run
from tests.running import SHORT, Start, finish, here, run_folder

_FEW = ("--max-new-tokens", "8")
# Few steps, but such that the model no longer says what its base does.
_LOUD = ("--set", "train.learning_rate=0.02", "--set", "train.warmup_steps=0")


def trained(airlock: Start, environ: dict[str, str], *settings: str) -> RunDir:
    code, out, err = finish(airlock(*SHORT, *_LOUD, "--set", "data.eval_path=", *settings))
    assert code == 0, out + err
    assert f"./airlock try {run_folder(environ).run_id}" in out.replace("runs/", "")
    return run_folder(environ)


def tried(airlock: Start, run: RunDir, *args: str) -> str:
    code, out, err = finish(airlock("try", run.run_id, *_FEW, *args))
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


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.long)])
def test_it_answers_as_the_exported_model_does_and_beside_the_base(
    airlock: Start, environ: dict[str, str], method: str
) -> None:
    run = trained(airlock, environ, "--set", f"train.method={method}")
    answer = greedy(run.model, "upper ab")
    assert tried(airlock, run, "upper ab") == answer + "\n"
    base, after = tried(airlock, run, "upper ab", "--beside-base").rstrip("\n").split("\ntrained: ")
    assert base.startswith("base: ")
    assert base.removeprefix("base: ") != after
    assert after == answer


@pytest.mark.long
def test_a_file_of_prompts_is_answered_line_by_line(
    environ: dict[str, str], airlock: Start, tmp_path: Path
) -> None:
    import subprocess

    run = trained(airlock, environ)
    command = [sys.executable, "-P", "-m", "launch", "try", str(run.path), *_FEW]
    typed = "upper ab\n\n/new\nupper ab\n/quit\nnever\n"
    done = subprocess.run(
        command, input=typed, env=environ, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == second  # a new conversation is as the first


@pytest.mark.long
def test_adapters_alone_answer_on_their_base_and_ctrl_c_ends_an_answer_only(
    airlock: Start, environ: dict[str, str]
) -> None:
    adapters = ("--set", "train.method=lora", "--set", "train.merge_adapters=false")
    run = trained(airlock, environ, *adapters)
    command = [sys.executable, "-P", "-m", "launch", "try", str(run.path)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], [*command, "--max-new-tokens", "200"], environ)  # noqa: S606
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


def test_a_run_without_a_model_says_what_to_do(airlock: Start, environ: dict[str, str]) -> None:
    runs = Path(environ["AIRLOCK_RUNS_DIR"])
    run = trained_run(runs / "20261120-221500-tiny-3f2a")
    for args, words, do in (
        (("nothing", "a"), "no run 'nothing'", f"ls {runs}"),
        ((run.run_id, "a"), "nothing was saved", f"→ {here('start.sh')} tiny\n"),
    ):
        code, _, err = finish(airlock("try", *args))
        assert code == 2
        assert words in err
        assert do in err
    write_status(run, Status(run_id=run.run_id, profile="tiny", phase="training"))
    checkpoint = run.checkpoints / "step_00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / MARKER).touch()
    code, _, err = finish(airlock("try", run.run_id, "a"))
    assert code == 2
    assert "has no model: its launcher died while it was training" in err
    assert f"→ ./airlock doctor runs/{run.run_id}" in err
    assert f"→ {here('start.sh')} tiny --resume runs/{run.run_id}" in err
    run.model.mkdir()
    code, _, err = finish(airlock("try", run.run_id, "a", "--beside-base"))
    assert code == 2
    assert "the base model of" in err
    assert f"--again runs/{run.run_id} --prepare-only" in err
