"""Logs as found in practice: compressed, in folders, truncated, huge, with non-text bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from doctor.logs import reading
from doctor.logs.diagnosis import diagnose
from doctor.logs.reading import find_logs, rank_of_name
from rundir.errors import UserError
from tests.doctor.doctor_rules import rules, verdict_on

FULL = "OSError: [Errno 28] No space left on device: '/data'"


@pytest.mark.parametrize(
    "log",
    [
        f"{FULL}",
        f"\r\n\r\n{FULL}\r\n",
        f"\xc3\xff\xfe loss\n{FULL}\n",
        "\x1b[31mOSError\x1b[0m: [Errno 28] \x1b[1mNo space\x1b[0m left on device: '/data'\n",
        f"10%|#   |\r20%|##  |\r{FULL}\r30%|### |\n",
        f"10%|#   | {FULL}\r20%|##  |\n",
        f"      step 1\n    {FULL}\n\n    step 2\n",
    ],
    ids=["no end", "windows", "no utf-8", "colours", "progress", "progress before", "margin"],
)
def test_a_line_is_found_whatever_stands_around_it(tmp_path: Path, log: str) -> None:
    verdict = verdict_on(tmp_path, log.encode("latin-1"))
    assert verdict.cause == "no-disk"
    assert "No space left on device" in verdict.evidence[0].text
    assert verdict.evidence[0].line == log[: log.index("left on")].count("\n") + 1


def test_only_the_state_of_a_progress_bar_that_tells_is_quoted(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, f"10%|#   |\r20%|##  |\r{FULL}\r30%|### |\n")
    assert verdict.evidence[0].text == FULL


def test_windows_own_utf_16_is_read(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, f"step 1\n{FULL}\n".encode("utf-16"))
    assert (verdict.cause, verdict.evidence[0].line) == ("no-disk", 2)


def test_a_packed_log_is_read_up_to_where_it_is_torn(tmp_path: Path) -> None:
    noise = "".join(f"{number * 7919 % 100_003}\n" for number in range(100_000))
    packed = gzip.compress(f"step 1\n{FULL}\n{noise}".encode())
    for data in (packed, packed[: len(packed) // 2]):
        verdict = verdict_on(tmp_path, data, "train.log.gz")
        assert (verdict.cause, verdict.evidence[0].line) == ("no-disk", 2)


def test_a_folder_is_searched_for_what_is_named_like_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    (folder / "attempt_0/1").mkdir(parents=True)
    (folder / ".cache").mkdir()
    for name in ("weights.bin", "notes.json", ".cache/old.log", "train.py"):
        (folder / name).write_text(FULL)
    (folder / "empty.log").touch()
    (folder / "binary.log").write_bytes(b"\0\1" + FULL.encode())
    (folder / "rank10.log").write_text("fine\n")
    (folder / "rank2.log").write_text("fine\n")
    (folder / "attempt_0/1/stderr.log").write_text(f"{FULL}\n")
    (folder / "slurm-123.out").write_text("fine\n")
    found = find_logs(str(folder))
    names = [str(one.path.relative_to(folder)) for one in found if one.path is not None]
    assert names == ["attempt_0/1/stderr.log", "rank2.log", "rank10.log", "slurm-123.out"]
    verdict = diagnose([str(folder)], rules(tmp_path))
    assert (verdict.cause, verdict.rank) == ("no-disk", 1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.log", 3),
        ("train_rank_12.out", 12),
        ("logs/run/attempt_0/5/stdout.log", 5),
        ("frank3.log", None),
        ("train.log", None),
    ],
)
def test_a_file_name_may_tell_the_rank(name: str, rank: int | None) -> None:
    assert rank_of_name(Path("/x") / name) == rank


def test_what_is_not_there_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, said in (("nowhere.log", "there is no "), ("empty", "no logs found below")):
        with pytest.raises(UserError, match=said):
            diagnose([str(tmp_path / name)])


def test_a_line_and_a_traceback_across_two_pieces_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE", 64)
    trace = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        f'    main()\n  File "train.py", line 2, in main\n    save()\n{FULL}\n'
    )
    for num_before in range(60, 70):
        before = "x" * num_before + "\n"
        verdict = verdict_on(tmp_path, before + trace)
        assert [one.line for one in verdict.evidence] == [7, 5]


def test_of_a_huge_log_head_and_tail_are_searched_and_lines_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE", 1000)
    monkeypatch.setattr(reading, "_MOST", 12 << 10)
    filler = "".join(f"line {number}\n" for number in range(1, 20_001))
    for before, after in (("", f"{FULL}\n"), (f"{FULL}\n", "")):
        log = before + filler + after
        verdict = verdict_on(tmp_path, log)
        assert verdict.evidence[0].line == log[: log.index(FULL)].count("\n") + 1
    half = len(filler) // 2
    verdict = verdict_on(tmp_path, f"{filler[:half]}\n{FULL}\n{filler[half:]}")
    assert verdict.cause == "unknown"


def test_a_line_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE", 1000)
    monkeypatch.setattr(reading, "_LONGEST", 4000)
    bar = "".join(f"\r{number}it [00:00, 3.1it/x]" for number in range(3000))
    verdict = verdict_on(tmp_path, f"{bar}\r{FULL}{bar}")
    assert (verdict.cause, verdict.evidence[0].line) == ("no-disk", 1)
    assert max(len(block.data) for block in reading.blocks(find_logs(str(tmp_path))[0])) < 6000


def test_the_own_line_of_what_a_worker_raises_is_that_which_asked_for_the_batch(
    tmp_path: Path,
) -> None:
    log = f"""\
Traceback (most recent call last):
  File "/home/u/train.py", line 7, in main
    for batch in loader:
  File "/x/site-packages/torch/utils/data/dataloader.py", line 7, in __next__
    data = self._next_data()
OSError: Caught OSError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 7, in _worker_loop
    data = fetcher.fetch(index)
{FULL}
"""
    verdict = verdict_on(tmp_path, log)
    assert [one.line for one in verdict.evidence] == [10, 2]
