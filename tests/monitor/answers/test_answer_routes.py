"""The endpoints about answers, asked as a browser or a script would ask them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.monitor.answers.made import (
    HOSTILE,
    client,
    example,
    new_run,
    put,
    snapshot,
    with_ways,
)

D = "/api/evolution/d"


def test_datasets_tell_of_the_newest_run_and_of_all_that_have_them(tmp_path: Path) -> None:
    old = new_run(tmp_path, "20261122-120000-tiny-0001")
    put(old, 5, snapshot(5, [example(0)]))
    put(old, 5, snapshot(5, [example(0)]), dataset="only old")
    run = with_ways(tmp_path)
    found = client(tmp_path).get("/api/evolution/datasets").json()["datasets"]
    assert [(one["name"], one["run"]) for one in found] == [
        ("d", run.run_id),
        ("only old", old.run_id),
    ]
    first = found[0]
    assert (first["num_snapshots"], first["first_step"], first["last_step"]) == (4, 0, 100)
    assert (first["num_examples"], first["hash"]) == (4, "h")
    assert first["runs"] == [run.run_id, old.run_id]
    of_run = client(tmp_path).get("/api/evolution/datasets", params={"run": old.run_id}).json()
    assert [one["name"] for one in of_run["datasets"]] == ["d", "only old"]


def test_snapshots_come_without_their_examples_and_broken_ones_with_the_reason(
    tmp_path: Path,
) -> None:
    put(with_ways(tmp_path), 250, "{")
    found = client(tmp_path).get(f"{D}/snapshots").json()["snapshots"]
    assert [one["step"] for one in found] == [0, 10, 50, 100, 250]
    assert found[1]["summary"]["correct"] == 1
    assert found[1]["cost"]["seconds"] == 1.0
    assert "no whole snapshot" in found[4]["error"]
    assert "examples" not in found[0]


def test_a_snapshot_is_the_file_and_a_step_may_be_written_in_two_ways(tmp_path: Path) -> None:
    run = with_ways(tmp_path)
    for step in ("10", "00000010", "step_00000010"):
        answer = client(tmp_path).get(f"{D}/snapshot/{step}")
        assert answer.content == run.evolution("d", 10).read_bytes()
        assert answer.headers["content-type"] == "application/json"


def test_what_is_not_there_is_not_found_and_the_hint_tells_what_is(tmp_path: Path) -> None:
    with_ways(tmp_path)
    asked = client(tmp_path)
    wrong = asked.get(f"{D}/snapshot/11")
    assert wrong.status_code == 404
    assert wrong.json()["hint"] == "there are those after steps 0, 10, 50, 100"
    assert asked.get(f"{D}/snapshot/ten").status_code == 400
    assert asked.get(f"{D}/snapshot/-1").status_code == 400
    unknown = asked.get("/api/evolution/e/snapshots")
    assert unknown.status_code == 404
    assert "there are answers to: 'd'" in unknown.json()["error"]
    assert asked.get(f"{D}/snapshots", params={"run": "none"}).status_code == 404
    assert client(tmp_path / "empty").get(f"{D}/snapshots").status_code == 404


def test_a_difference_tells_what_became_of_each_prompt(tmp_path: Path) -> None:
    with_ways(tmp_path)
    found = client(tmp_path).get(f"{D}/diff/10/100").json()
    changes = ["newly_right", "regressed", "never_right", "newly_right"]
    assert [one["change"] for one in found["examples"]] == changes
    assert found["examples"][0]["words"] == [["removed", "no"], ["added", "yes"]]
    assert found["summary"]["newly_right"] == 2
    some = client(tmp_path).get(f"{D}/diff/10/100", params={"change": "regressed"}).json()
    assert [one["example_id"] for one in some["examples"]] == [1]
    few = client(tmp_path).get(f"{D}/diff/10/100", params={"limit": 1, "offset": 3}).json()
    assert [one["example_id"] for one in few["examples"]] == [3]
    assert few["total"] == 4


def test_two_runs_of_other_data_are_matched_by_their_prompts(tmp_path: Path) -> None:
    run = with_ways(tmp_path)
    other = new_run(tmp_path, "20261124-120000-tiny-0b0b")
    rows = [example(9, is_right=True, input="prompt 2"), example(0, input="another")]
    put(other, 7, snapshot(7, rows, data_hash="other"))
    asked = {"run": run.run_id, "other_run": other.run_id}
    found = client(tmp_path).get(f"{D}/diff/0/7", params=asked).json()
    assert [(one["input"], one["change"]) for one in found["examples"]] == [
        ("prompt 2", "newly_right")
    ]
    told = found["summary"]
    assert not told["is_same_data"]
    assert (told["num_matched"], told["only_in_a"], told["only_in_b"]) == (1, 3, 1)


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ("", [0, 1, 2, 3]),
        ("newly_right", [0]),
        ("regressed", [1]),
        ("never_right", [2]),
        ("unstable", [1, 3]),
    ],
)
def test_examples_are_filtered_by_their_way(
    tmp_path: Path, wanted: str, numbers: list[int]
) -> None:
    with_ways(tmp_path)
    found = client(tmp_path).get(f"{D}/examples", params={"filter": wanted}).json()
    assert [one["example_id"] for one in found["examples"]] == numbers
    assert found["steps"] == [0, 10, 50, 100]
    assert found["counts"]["all"] == 4
    ways = ("0001", "0110", "0000", "1011")
    assert ["".join(str(int(one)) for one in row["exact_match"]) for row in found["examples"]] == [
        ways[number] for number in numbers
    ]


def test_examples_are_searched_and_those_that_a_step_lacks_have_no_answer_there(
    tmp_path: Path,
) -> None:
    run = with_ways(tmp_path)
    put(run, 250, snapshot(250, [example(4, model_output="Straße")]))
    asked = client(tmp_path)
    found = asked.get(f"{D}/examples", params={"search": "STRASSE"}).json()
    assert [one["example_id"] for one in found["examples"]] == [4]
    assert found["examples"][0]["exact_match"] == [None, None, None, None, False]
    assert asked.get(f"{D}/examples", params={"search": "prompt 3"}).json()["total"] == 1
    assert asked.get(f"{D}/examples", params={"filter": "all"}).status_code == 400


def test_an_export_has_a_line_for_each_example_and_step(tmp_path: Path) -> None:
    put(with_ways(tmp_path), 250, "{")
    answer = client(tmp_path).get(f"{D}/export")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [(row["step"], row["example_id"]) for row in rows] == [
        (step, n) for step in (0, 10, 50, 100) for n in range(4)
    ]
    assert answer.headers["content-disposition"].endswith('tiny-0a0a-d.jsonl"')
    table = client(tmp_path).get(f"{D}/export", params={"format": "csv"})
    assert len(list(csv.reader(io.StringIO(table.text)))) == 17
    assert client(tmp_path).get(f"{D}/export", params={"format": "xls"}).status_code == 400


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    bad = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "＝1", '=cmd|"/c calc"!A1']  # noqa: RUF001
    rows = [example(n, input=text, model_output=text) for n, text in enumerate([*bad, "a,b\n=c"])]
    put(new_run(tmp_path), 0, snapshot(0, rows))
    table = client(tmp_path).get(f"{D}/export", params={"format": "csv"})
    found = list(csv.DictReader(io.StringIO(table.text, newline="")))
    assert [row["model_output"] for row in found] == [*("'" + text for text in bad), "a,b\n=c"]


@pytest.mark.parametrize("name", [*HOSTILE, "a b", "ü", 'quo"te', "x" * 250, "a;b\\c"])
def test_data_sets_of_any_name_are_served_under_it(tmp_path: Path, name: str) -> None:
    name = name.replace("/", "|")
    run = new_run(tmp_path)
    put(run, 10, snapshot(10, [example(0, model_output=one) for one in HOSTILE]), dataset=name)
    asked = client(tmp_path)
    assert asked.get("/api/evolution/datasets").json()["datasets"][0]["name"] == name
    here = f"/api/evolution/{quote(name, safe='')}"
    for end in ("snapshots", "snapshot/10", "diff/10/10", "examples", "export?format=csv"):
        answer = asked.get(f"{here}/{end}")
        assert answer.status_code == 200, (end, answer.text)
        assert not answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..", "%2fetc", "%00", "d%2f..%2fd", "."])
@pytest.mark.parametrize("end", ["snapshots", "snapshot/10", "diff/0/10", "examples", "export"])
def test_no_name_leads_out_of_the_run_folder(tmp_path: Path, name: str, end: str) -> None:
    with_ways(tmp_path)
    asked = client(tmp_path)
    assert asked.get(f"/api/evolution/{name}/{end}").status_code in (400, 404)
    assert asked.get(f"{D}/{end}", params={"run": name}).status_code == 404
    assert asked.get(f"{D}/{end}", params={"run": f"../{tmp_path.name}"}).status_code == 404


def test_a_run_that_is_removed_while_it_is_asked_for_is_not_found(tmp_path: Path) -> None:
    run = with_ways(tmp_path)
    asked = client(tmp_path)
    assert asked.get(f"{D}/examples").status_code == 200
    shutil.rmtree(run.path)
    for end in ("snapshots", "snapshot/10", "diff/0/10", "examples", "export"):
        assert asked.get(f"{D}/{end}").status_code == 404
        assert asked.get(f"{D}/{end}", params={"run": run.run_id}).status_code == 404
