"""Logs are followed line by line; nothing is lost, duplicated or held back for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.run.supervise import workload
from launch.run.supervise.workload import LogTail, RankOutput


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    tail = LogTail(log)
    assert not tail.new_lines()
    with log.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.new_lines() == ["one"]
        file.write("o ü".encode()[:-1])
        assert not tail.new_lines()
        file.write("ü".encode()[-1:] + b"\n\nfour")
        assert tail.new_lines() == ["two ü", ""]
        assert tail.new_lines(last=True) == ["four"]
        assert not tail.new_lines(last=True)


def test_a_carriage_return_ends_a_line_and_with_a_newline_only_one(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    tail = LogTail(log)
    with log.open("ab", buffering=0) as file:
        file.write(b"\r10%\r20%")
        assert tail.new_lines() == ["10%"]
        file.write(b"\r")
        assert not tail.new_lines()
        file.write(b"\nnext\r\n\r100%\n")
        assert tail.new_lines() == ["20%", "next", "100%"]


def test_a_line_without_end_is_shown_in_time(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(b"x" * (3 << 20))
    tail = LogTail(log)
    shown = [line for _ in range(3) for line in tail.new_lines() or ()]
    assert "".join(shown) == "x" * (3 << 20)


def test_a_question_that_waits_for_an_answer_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("a line\n(Pdb) ")
    tail = LogTail(log)
    assert tail.new_lines() == ["a line"]
    assert tail.prompt() is None  # the line may go on at any moment
    monkeypatch.setattr(workload, "_PROMPT_S", 0.0)  # time passes
    assert (tail.prompt(), tail.prompt()) == ("(Pdb) ", None)
    with log.open("a") as file:
        file.write("42\n")
    assert tail.new_lines() == ["42"]


def test_much_output_comes_in_pieces_and_none_of_it_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "attempt0"
    folder.mkdir()
    written = [f"{number:099}" for number in range(100_000)]  # 10 MB
    (folder / "rank0.log").write_text("\n".join(written))
    output = RankOutput(tmp_path)
    (first,) = output.new_lines()
    rest = list(output.new_lines(last=True))
    assert [line for piece in (first, *rest) for line in piece] == written
    assert max(len(piece) for piece in (first, *rest)) < 11_000
