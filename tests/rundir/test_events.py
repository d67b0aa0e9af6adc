"""Events: whole lines however many write at once, and readers that cope with torn ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rundir.events import COMMON, EventTail, EventWriter, RunEvents, read_events
from rundir.schema import EVENTS

SPANS = [spec for spec in EVENTS if spec.kind == "span"]

# Writes its events as fast as it can, as soon as its stdin closes.
WRITER = """
import sys
from pathlib import Path
from rundir.events import EventWriter
path, number, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
events = EventWriter(path, rank=number)
sys.stdin.read()
for i in range(count):
    events.emit("log", "line", text=f"{i} " + chr(97 + number) * 20_000)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rank0.jsonl"


def line(text: str) -> str:
    event = {"v": 1, "t": 0.0, "mono": 0.0, "rank": None, "kind": "log", "name": "line"}
    return json.dumps(event | {"text": text}) + "\n"


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events]


def test_many_processes_writing_to_one_file_never_interleave(
    file: Path, environ: dict[str, str]
) -> None:
    num_writers, num_events = 4, 100
    writers = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", WRITER, str(file), str(number), str(num_events)],
            env=environ,
            stdin=subprocess.PIPE,
        )
        for number in range(num_writers)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0] * num_writers

    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) == num_writers * num_events
    by_rank: dict[int, list[str]] = defaultdict(list)
    for event in map(json.loads, lines):
        by_rank[event["rank"]].append(event["text"])
    for rank, seen in by_rank.items():
        assert seen == [f"{i} " + chr(97 + rank) * 20_000 for i in range(num_events)]


def test_an_event_says_when_where_and_who_wrote_it(file: Path) -> None:
    for attempt in (1, 2):  # a second writer of a file appends to it
        events = EventWriter(file, rank=3, node=1, attempt=attempt)
        events.emit("log", "line", text="übung \u2028 \n\r")
        events.close()
    first, event = read_events(file.parent)
    assert first["attempt"] == 1
    assert event.keys() == COMMON | {"text"}
    assert event["v"] == 1
    assert (event["rank"], event["node"], event["attempt"]) == (3, 1, 2)
    assert event["pid"] == os.getpid()
    assert (event["kind"], event["name"]) == ("log", "line")
    assert event["text"] == "übung \u2028 \n\r"
    assert event["t"] > 1.7e9  # Unix seconds
    assert 0 < event["mono"] < event["t"]


def test_a_torn_last_line_waits_for_its_rest(file: Path) -> None:
    whole = line("second")
    file.write_text(line("first") + whole[:30], encoding="utf-8")
    tail = EventTail(file)
    assert texts(tail.new_events()) == ["first"]
    assert tail.new_events() == []
    with file.open("a", encoding="utf-8") as out:
        out.write(whole[30:] + line("third"))
    assert texts(tail.new_events()) == ["second", "third"]


@pytest.mark.parametrize(
    "broken",
    [b'{"v": 1, "kind": "lo\n', b"\n", b"\xff\xfe\n", b"[1, 2]\n", b'"kind"\n', b"{}\n", b"null\n"],
)
def test_a_broken_line_is_skipped_and_the_others_are_read(file: Path, broken: bytes) -> None:
    file.write_bytes(line("before").encode() + broken + line("after").encode())
    assert texts(EventTail(file).new_events()) == ["before", "after"]
    assert texts(read_events(file.parent)) == ["before", "after"]


def test_a_file_or_a_folder_that_is_not_there_yet_has_no_events(file: Path) -> None:
    tail = EventTail(file)
    assert tail.new_events() == read_events(file.parent / "none") == []
    file.write_text(line("now"), encoding="utf-8")
    assert texts(tail.new_events()) == ["now"]


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("log", "line", {}),
        ("log", "line", {"text": "a", "more": 1}),
        ("log", "line", {"words": "a"}),
        ("start", "step", {}),
        ("start", "import", {"duration_s": 1.0}),
        ("mark", "limits", {"rlimit_as_bytes": 1}),
    ],
)
def test_fields_other_than_the_tables_are_refused(
    file: Path, kind: str, name: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError, match="not as in the table"):
        EventWriter(file).emit(kind, name, **fields)
    assert file.read_bytes() == b""


def test_null_is_taken_only_where_the_table_allows_it(file: Path) -> None:
    events = EventWriter(file)
    events.emit("mark", "limits", rlimit_as_bytes=None, rlimit_nofile=None)
    with pytest.raises(AssertionError, match=r"eval\.loss may not be null"):
        events.emit("metric", "eval", step=1, loss=None, exact_match=None)
    (event,) = read_events(file.parent)
    assert event["rlimit_as_bytes"] is None


@pytest.mark.parametrize("spec", SPANS, ids=[spec.name for spec in SPANS])
def test_every_span_ends_with_its_duration_however_it_is_left(file: Path, spec: Any) -> None:
    events, fields = EventWriter(file, rank=0), dict.fromkeys(spec.fields, 1)
    with events.span(spec.name, **fields):
        pass
    with pytest.raises(ZeroDivisionError), events.span(spec.name, **fields):
        raise ZeroDivisionError
    written = read_events(file.parent)
    assert [event["kind"] for event in written] == ["start", "end", "start", "end"]
    for start, end in (written[:2], written[2:]):
        assert "duration_s" not in start
        assert 0 <= end["duration_s"] <= end["mono"] - start["mono"] + 1e-3
        assert {key: end[key] for key in fields} == fields


def test_a_reader_takes_up_new_files_and_new_lines_once_in_the_order_of_their_time(
    tmp_path: Path,
) -> None:
    events = RunEvents(tmp_path)
    assert events.new_events() == []
    first = EventWriter(tmp_path / "launch.jsonl")
    first.emit("log", "line", text="a")
    assert texts(events.new_events()) == ["a"]
    EventWriter(tmp_path / "rank0.jsonl", rank=0).emit("log", "line", text="b")
    first.emit("log", "line", text="c")
    EventWriter(tmp_path / "agent.jsonl").emit("log", "line", text="d")
    (tmp_path / "notes.txt").write_text(line("not an event file"), encoding="utf-8")
    assert texts(events.new_events()) == ["b", "c", "d"]
    assert events.new_events() == []


def test_a_fork_of_the_writer_writes_nothing(file: Path) -> None:
    events = EventWriter(file)
    with events.span("import"):
        pid = os.fork()
        if pid == 0:
            events.emit("log", "line", text="not the writer")
            os._exit(0)
        os.waitpid(pid, 0)
    assert [event["kind"] for event in read_events(file.parent)] == ["start", "end"]
