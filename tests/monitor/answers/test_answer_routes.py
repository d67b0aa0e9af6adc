"""The endpoints about answers, asked as a browser or a script would ask them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.monitor.answers.made import HOSTILE, client, example, new_run, put, snapshot, with_ways

D = "/api/evolution/d"
OLD = "20261122-120000-tiny-0001"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two runs, which no test changes: one of four steps, and one before it."""
    folder = tmp_path_factory.mktemp("answers")
    old = new_run(folder, OLD)
    rows = [example(9, is_right=True, input="prompt 2"), example(0, input="another")]
    put(old, 7, snapshot(7, rows, data_hash="other"))
    put(old, 5, snapshot(5, [example(0)]), dataset="only old")
    with_ways(folder)
    return folder


@pytest.fixture(scope="module")
def asks(runs: Path) -> TestClient:
    """Return what asks a server over these runs."""
    return client(runs)


def ids(answer: Any) -> list[int]:
    return [row["example_id"] for row in answer.json()["examples"]]


def test_datasets_tell_of_the_newest_run_and_of_all_that_have_them(asks: TestClient) -> None:
    first, other = asks.get("/api/evolution/datasets").json()["datasets"]
    assert (first["name"], other["name"], other["run"]) == ("d", "only old", OLD)
    assert (first["num_snapshots"], first["first_step"], first["last_step"]) == (4, 0, 100)
    assert (first["num_examples"], first["hash"]) == (4, "h")
    assert first["runs"] == [first["run"], OLD]
    of_run = asks.get("/api/evolution/datasets", params={"run": first["run"]}).json()
    assert [row["name"] for row in of_run["datasets"]] == ["d"]


def test_snapshots_come_without_their_examples_and_broken_ones_with_the_reason(
    tmp_path: Path,
) -> None:
    put(with_ways(tmp_path), 250, "{")
    snapshots = client(tmp_path).get(f"{D}/snapshots").json()["snapshots"]
    assert [row["step"] for row in snapshots] == [0, 10, 50, 100, 250]
    assert snapshots[1]["summary"]["correct"] == 1
    assert snapshots[1]["cost"]["seconds"] == 1.0
    assert "no whole snapshot" in snapshots[4]["error"]
    assert "examples" not in snapshots[0]


def test_a_snapshot_is_the_file_and_a_step_may_be_written_in_two_ways(
    asks: TestClient, runs: Path
) -> None:
    file = next(runs.glob("*/evolution/d/step_00000010.json"))
    for step in ("10", "00000010", "step_00000010"):
        answer = asks.get(f"{D}/snapshot/{step}")
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"] == "application/json"


def test_what_is_not_there_is_not_found_and_the_hint_tells_what_is(
    asks: TestClient, tmp_path: Path
) -> None:
    wrong = asks.get(f"{D}/snapshot/11")
    assert wrong.status_code == 404
    assert wrong.json()["hint"] == "there are those after steps 0, 10, 50, 100"
    assert asks.get(f"{D}/snapshot/ten").status_code == 400
    assert asks.get(f"{D}/snapshot/-1").status_code == 400
    unknown = asks.get("/api/evolution/e/snapshots")
    assert unknown.status_code == 404
    assert "there are answers to: 'd', 'only old'" in unknown.json()["error"]
    assert asks.get(f"{D}/snapshots", params={"run": "none"}).status_code == 404
    assert client(tmp_path / "empty").get(f"{D}/snapshots").status_code == 404


def test_a_difference_tells_what_became_of_each_prompt(asks: TestClient) -> None:
    answer = asks.get(f"{D}/diff/10/100").json()
    changes = ["newly_right", "regressed", "never_right", "newly_right"]
    assert [row["change"] for row in answer["examples"]] == changes
    assert answer["examples"][0]["words"] == [["removed", "no"], ["added", "yes"]]
    assert answer["summary"]["newly_right"] == 2
    assert ids(asks.get(f"{D}/diff/10/100", params={"change": "regressed"})) == [1]
    few = asks.get(f"{D}/diff/10/100", params={"limit": 1, "offset": 3})
    assert (ids(few), few.json()["total"]) == ([3], 4)


def test_two_runs_of_other_data_are_matched_by_their_prompts(asks: TestClient) -> None:
    answer = asks.get(f"{D}/diff/0/7", params={"other_run": OLD}).json()
    changes = [(row["input"], row["change"]) for row in answer["examples"]]
    assert changes == [("prompt 2", "newly_right")]
    summary = answer["summary"]
    assert not summary["is_same_data"]
    assert (summary["num_matched"], summary["only_in_a"], summary["only_in_b"]) == (1, 3, 1)


def test_examples_are_filtered_by_their_way(asks: TestClient) -> None:
    numbers_of = {
        "": [0, 1, 2, 3],
        "newly_right": [0],
        "regressed": [1],
        "never_right": [2],
        "unstable": [1, 3],
    }
    ways = ("0001", "0110", "0000", "1011")
    for wanted, numbers in numbers_of.items():
        answer = asks.get(f"{D}/examples", params={"filter": wanted})
        assert ids(answer) == numbers, wanted
        assert answer.json()["steps"] == [0, 10, 50, 100]
        assert answer.json()["counts"]["all"] == 4
        rows = [
            "".join(str(int(n)) for n in row["exact_match"]) for row in answer.json()["examples"]
        ]
        assert rows == [ways[number] for number in numbers]
    assert asks.get(f"{D}/examples", params={"filter": "all"}).status_code == 400


def test_examples_are_searched_and_those_that_a_step_lacks_have_no_answer_there(
    tmp_path: Path,
) -> None:
    run = with_ways(tmp_path)
    put(run, 250, snapshot(250, [example(4, model_output="Straße")]))
    asked = client(tmp_path)
    answer = asked.get(f"{D}/examples", params={"search": "STRASSE"})
    assert ids(answer) == [4]
    assert answer.json()["examples"][0]["exact_match"] == [None, None, None, None, False]
    assert asked.get(f"{D}/examples", params={"search": "prompt 3"}).json()["total"] == 1


def test_an_export_has_a_line_for_each_example_and_step(tmp_path: Path) -> None:
    put(with_ways(tmp_path), 250, "{")
    asked = client(tmp_path)
    answer = asked.get(f"{D}/export")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [(row["step"], row["example_id"]) for row in rows] == [
        (step, n) for step in (0, 10, 50, 100) for n in range(4)
    ]
    assert answer.headers["content-disposition"].endswith('tiny-0a0a-d.jsonl"')
    table = asked.get(f"{D}/export", params={"format": "csv"})
    assert len(list(csv.reader(io.StringIO(table.text)))) == 17
    assert asked.get(f"{D}/export", params={"format": "xls"}).status_code == 400


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    bad = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "＝1", '=cmd|"/c calc"!A1']  # noqa: RUF001
    rows = [example(n, input=text, model_output=text) for n, text in enumerate([*bad, "a,b\n=c"])]
    put(new_run(tmp_path), 0, snapshot(0, rows))
    table = client(tmp_path).get(f"{D}/export", params={"format": "csv"})
    cells = [row["model_output"] for row in csv.DictReader(io.StringIO(table.text, newline=""))]
    assert cells == [*("'" + text for text in bad), "a,b\n=c"]


def test_data_sets_of_any_name_are_served_under_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    names = [*HOSTILE, "a b", "ü", 'quo"te', "x" * 250, "a;b\\c"]
    names = sorted(name.replace("/", "|") for name in names)
    rows = [example(0, model_output=text) for text in HOSTILE]
    for name in names:
        put(run, 10, snapshot(10, rows), dataset=name)
    asked = client(tmp_path)
    listed = asked.get("/api/evolution/datasets").json()["datasets"]
    assert [row["name"] for row in listed] == names
    for name in names:
        here = f"/api/evolution/{quote(name, safe='')}"
        for end in ("snapshots", "snapshot/10", "diff/10/10", "examples", "export?format=csv"):
            answer = asked.get(f"{here}/{end}")
            assert answer.status_code == 200, (name, end, answer.text)
            assert not answer.headers["content-type"].startswith("text/html")


ENDS = ("snapshots", "snapshot/10", "diff/0/10", "examples", "export")


def test_no_name_leads_out_of_the_run_folder(asks: TestClient, runs: Path) -> None:
    names = ("..", "%2e%2e", "..%2f..", "%2fetc", "%00", "d%2f..%2fd", ".")
    for name, end in product(names, ENDS):
        assert asks.get(f"/api/evolution/{name}/{end}").status_code in (400, 404), (name, end)
        assert asks.get(f"{D}/{end}", params={"run": name}).status_code == 404
        assert asks.get(f"{D}/{end}", params={"run": f"../{runs.name}"}).status_code == 404


def test_a_run_that_is_removed_while_it_is_asked_for_is_not_found(tmp_path: Path) -> None:
    run = with_ways(tmp_path)
    asked = client(tmp_path)
    assert asked.get(f"{D}/examples").status_code == 200
    shutil.rmtree(run.path)
    for end in ENDS:
        assert asked.get(f"{D}/{end}").status_code == 404
        assert asked.get(f"{D}/{end}", params={"run": run.run_id}).status_code == 404
