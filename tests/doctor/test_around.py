"""The lines around an exception: of a launcher, a parent process, trackers, an exit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.doctor_rules import trace, verdict_on

FULL = "OSError: [Errno 28] No space left on device: '/data'"
BOX = f"""\
╭{" Traceback (most recent call last) ":─^58}╮
│{" /home/u/train.py:10 in <module>":<58}│
│{" ❱ 10 main()":<58}│
╰{"─" * 58}╯
"""


def test_of_a_process_that_was_spawned_its_own_exception_is_named(tmp_path: Path) -> None:
    parent = trace("torch.multiprocessing.spawn.ProcessRaisedException: ")
    told = "\n-- Process 5 terminated with the following error:\n"
    verdict = verdict_on(tmp_path, parent + told + trace("ValueError: no such thing"))
    assert (verdict.cause, verdict.rank, verdict.evidence[0].line) == ("python-exception", 5, 20)


def test_what_is_cleaned_up_at_the_exit_is_no_failure(tmp_path: Path) -> None:
    frame = '  File "/usr/lib/python3.12/multiprocessing/util.py", line 303, in _run_finalizers\n'
    log = f"Traceback (most recent call last):\n{frame}    finalizer()\nOSError: busy: '.nfs1'\n"
    assert verdict_on(tmp_path, log).cause == "unknown"


@pytest.mark.parametrize(
    "after",
    [
        "losses = {" + ", ".join(f"'loss_{n}': 'nan'" for n in range(30)) + "}\n",
        "wandb:    train/loss 1.25\n" * 30,
    ],
    ids=["one line", "a summary"],
)
def test_much_about_losses_is_not_progress(tmp_path: Path, after: str) -> None:
    assert verdict_on(tmp_path, f"{FULL}\n{after}").cause == "no-disk"


@pytest.mark.parametrize(("code", "rank"), [("1", 3), ("-9", 3), ("-15", None)])
def test_the_rank_is_read_from_what_the_launcher_says_of_its_end(
    tmp_path: Path, code: str, rank: int | None
) -> None:
    said = f"[ERROR] failed (exitcode: {code}) local_rank: 3 (pid: 42) of binary: /usr/bin/python\n"
    assert verdict_on(tmp_path, f"{FULL}\n{said}").rank == rank


def test_a_message_broken_at_a_boxs_width_is_read_whole(tmp_path: Path) -> None:
    told = "OSError: cannot write the checkpoint, [Errno 28] No space\nleft on device: '/data'\n"
    verdict = verdict_on(tmp_path, BOX + told)
    assert (verdict.cause, verdict.evidence[0].line) == ("no-disk", 5)


def test_a_short_line_below_a_box_is_not_joined_with_the_next(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, BOX + "OSError: [Errno 28] No space\nleft on device: 12\n")
    assert verdict.cause == "python-exception"
