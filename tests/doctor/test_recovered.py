"""What a rank got over is not what ended it, and what Airlock itself prints is no evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.logs.diagnosis import diagnose
from doctor.logs.verdict import Verdict
from doctor.runs.run_folder import of_run, read_state
from launch.run.supervise.ask_doctor import advice, examined
from rundir.events import read_events
from tests.doctor.run_folders import Story
from tests.running import here

OUR_LINE = "IMPORT: wandb is left to the script: ModuleNotFoundError: No module named 'wandb'"
OFFLINE = "[transformers] Offline mode: forcing local_files_only=True"
GLOO = "what():  [enforce fail at gloo/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4."
RAISED = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 7, in main
    {code}
{exception}
"""


def on_log(folder: Path, text: str) -> Verdict:
    path = folder / "rank0.log"
    path.write_text(text)
    return diagnose([str(path)])


def raised(exception: str, code: str = "step()") -> str:
    return RAISED.format(code=code, exception=exception)


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_an_import_that_airlock_leaves_to_the_script_is_no_cause(start: str) -> None:
    story = Story(script=True)
    who, writer = ("Zygote", "zygote") if start == "warm" else ("Rank 0", "rank0")
    story.tell(writer, "log", "line", text=f"[{who}] {OUR_LINE}")
    log = story.prints(0, "") if start == "cold" else story.run.zygote_log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"[{who}] {OUR_LINE}\n")
    story.raises(0, "KeyError: 'learning_rate'")
    story.exited(1, -15, "SIGTERM")
    story.ends()
    verdict = of_run(story.run)
    assert (verdict.cause, verdict.title) == ("python-exception", "KeyError: 'learning_rate'")
    assert verdict.evidence[1].text == 'File "/home/u/train.py", line 7, in main'


def test_what_the_zygote_printed_was_got_over_by_the_rank_that_raised() -> None:
    story = Story(script=True)
    story.run.zygote_log.parent.mkdir(parents=True, exist_ok=True)
    story.run.zygote_log.write_text("library: ModuleNotFoundError: No module named 'apex'\n")
    story.raises(0, "ValueError: too long")
    story.ends()
    assert of_run(story.run).title == "ValueError: too long"


@pytest.mark.parametrize("between", ["", "epoch 1\n" * 20])
@pytest.mark.parametrize(
    "got_over",
    [
        OFFLINE,
        "please install apex first",
        raised("ModuleNotFoundError: No module named 'x'"),
    ],
)
def test_a_mistake_in_the_code_outranks_all_that_stands_above(
    tmp_path: Path, got_over: str, between: str
) -> None:
    exception = "AttributeError: 'Linear' object has no attribute 'generate_all'"
    verdict = on_log(tmp_path, f"{got_over}\n{between}{raised(exception)}")
    assert (verdict.cause, verdict.title) == ("python-exception", exception)


def test_an_exception_raised_on_purpose_may_follow_from_the_lines_right_above(
    tmp_path: Path,
) -> None:
    why = "ERROR: Process 0 encountered an error: [Errno 5] Input/output error\n"
    summary = raised("CheckpointException: ranks [0]")
    assert on_log(tmp_path, why + summary).cause == "storage-io-error"
    between = "".join(f"batch {number}\n" for number in range(20))
    assert on_log(tmp_path, why + between + summary).cause == "python-exception"


def test_a_caught_exception_does_not_explain_the_known_one_that_ended_the_rank(
    tmp_path: Path,
) -> None:
    caught = raised("ModuleNotFoundError: No module named 'wandb'")
    between = "".join(f"batch {number}\n" for number in range(20))
    end = raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert on_log(tmp_path, caught + between + end).cause == "cuda-out-of-memory"
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    full = raised("OSError: [Errno 28] No space left on device")
    assert on_log(tmp_path, full + chained + raised("KeyError: 'w'")).cause == "disk-full"


def test_the_report_in_a_runs_output_is_no_evidence(tmp_path: Path) -> None:
    text = raised("KeyError: 'learning_rate'") + (
        "\nairlock: the run failed: rank 0 raised KeyError: 'learning_rate'\n"
        "  and, as a consequence, rank 1\n"
        "  CUDA out of memory. Tried to allocate 2 GiB\n"
        "  → please install it first\n\n"
    )
    assert on_log(tmp_path, text).title == "KeyError: 'learning_rate'"


def test_a_torch_without_cuda_is_said_to_be_that(tmp_path: Path) -> None:
    text = raised("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'")
    verdict = on_log(tmp_path, text)
    assert verdict.cause == "cuda-not-available"
    assert verdict.title.startswith("This torch is built without CUDA")
    assert "pip install -U transformers" not in verdict.fix


def test_of_a_collective_mismatch_the_line_of_each_rank_is_named() -> None:
    story = Story(script=True)
    story.prints(
        1,
        f"{GLOO}\nFatal Python error: Aborted\n\n"
        "Thread 0x00007f405627d6c0 (most recent call first):\n"
        '  File "/w/airlock/launch/rank/script_gate.py", line 176 in _watch\n\n'
        "Thread 0x00007f40797d1b80 (most recent call first):\n"
        '  File "/opt/lib/python3.11/site-packages/torch/c10d.py", line 3 in all_reduce\n'
        '  File "/home/u/my train.py", line 9 in main\n'
        '  File "/w/airlock/launch/rank/script.py", line 153 in _execute\n\n'
        "Extension modules: numpy (total: 1)\n",
    )
    story.exited(1, -6, "SIGABRT")
    story.raises(0, "RuntimeError: [gloo/pair.cc:534] Connection reset by peer")
    story.ends()
    verdict = of_run(story.run)
    assert (verdict.cause, verdict.rank) == ("collective-mismatch", 1)
    assert "Rank 1 was at /home/u/my train.py, line 9, in main; " in verdict.why
    assert "rank 0 was at /home/u/train.py, line 7, in main." in verdict.why.lower()
    assert verdict.fix.startswith("less -N +9 '/home/u/my train.py'   # make every rank")
    assert verdict.evidence[1].text == 'File "/home/u/my train.py", line 9 in main'


@pytest.mark.parametrize("is_script", [True, False])
def test_a_profiles_user_is_told_what_a_profile_can_be_told(*, is_script: bool) -> None:
    story = Story(script=is_script)
    story.run.command.write_text("./start.sh tiny --data a.jsonl\n")
    story.raises(1, "RuntimeError: Expected to have finished reduction in the prior iteration")
    story.ends()
    state = read_state(story.run, read_events(story.run.events))
    fix = advice(examined(story.run, state), state)[-1]
    assert ("find_unused_parameters=True" in fix) is is_script
    typed = f"→ {here('start.sh')} tiny --data a.jsonl --set train."
    assert fix.startswith(typed) is not is_script
