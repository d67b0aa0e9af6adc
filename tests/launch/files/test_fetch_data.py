"""Datasets of the Hub: which files are used, and what is reported if there are none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.files.fetch_data import as_they_are, converted, parse
from rundir.errors import ExitCode, UserError
from tests.hub_server import Hub, Model, serving
from tests.launch.files.conftest import start_child
from tests.running import finish, output_of
from train.data.sources import find_sources

ID = "someone/rows"
FILES = {
    "README.md": b"-",
    "data/train-0.jsonl": b'{"text": "a"}\n{"text": "b"}\n',
    "data/train-1.jsonl": b'{"text": "c"}\n',
    "data/test.jsonl": b'{"text": "d"}\n',
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({f"datasets/{ID}": Model(dict(FILES))})) as found:
        yield found


def fetch(env: dict[str, str], name: str, folder: Path) -> tuple[int, str]:
    """Return (exit code, output)."""
    quiet = env | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    code, _, said = finish(start_child(quiet, "launch.files.fetch_data", name, str(folder)))
    return code, said


FETCH = """
import sys
from pathlib import Path
from launch.files.fetch_data import fetch
for place, name in enumerate(sys.argv[2:]):
    fetch(name, Path(sys.argv[1]) / str(place))
"""
SPLITS = {f"hf:{ID}": ["a", "b", "c"], f"hf:{ID}/train": ["a", "b", "c"], f"hf:{ID}/test": ["d"]}


def test_the_files_of_a_split_are_fetched_and_read_also_offline(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    names, held = [*SPLITS], []

    def fetched(folder: str, *names: str, **env: str) -> list[list[str]]:
        (tmp_path / folder).mkdir()
        program = [sys.executable, "-P", "-c", FETCH, str(tmp_path / folder), *names]
        subprocess.run(program, env=hub_env | env, check=True)
        held.append({path.name for path in (tmp_path / "hf").rglob("*") if path.is_file()})
        return [
            [
                json.loads(line)["text"]
                for source in find_sources(tmp_path / folder / str(place))
                for line in source.path.read_text().splitlines()
            ]
            for place in range(len(names))
        ]

    assert fetched("by default", names[0]) == [["a", "b", "c"]]
    assert fetched("all", *names) == [SPLITS[name] for name in names]
    assert ["test.jsonl" in files for files in held] == [False, True]  # no more than is asked for
    hub.requests.clear()
    offline = fetched("offline", *names, HF_HUB_OFFLINE="1")
    assert (offline, hub.requests) == ([SPLITS[name] for name in names], [])


@pytest.mark.long
def test_a_run_takes_its_data_from_the_hub(
    airlock: Callable[..., subprocess.Popen[str]], hub_env: dict[str, str]
) -> None:
    env = {name: hub_env[name] for name in ("HF_HOME", "HF_ENDPOINT")} | {"NO_PROXY": "*"}
    settings = ("train.max_steps=2", "train.global_batch_size=2", f"data.eval_path=hf:{ID}/test")
    options = [word for setting in settings for word in ("--set", setting)]
    out = output_of(airlock("run", "tiny", "--data", f"hf:{ID}", *options, env=env))
    assert "3 samples" in out
    assert "[[a<|end|>]]" in out


def test_what_is_not_there_is_said(hub_env: dict[str, str], tmp_path: Path) -> None:
    code, said = fetch(hub_env, "hf:someone/else", tmp_path / "a")
    assert code == ExitCode.PREFLIGHT
    assert "there is no datasets/someone/else at" in said
    code, said = fetch(hub_env, f"hf:{ID}/valid", tmp_path / "b")
    assert code == ExitCode.DATA
    assert "has no split 'valid'; there are: data/test.jsonl" in said
    assert f"--data hf:{ID}/train" in said


PARQUET = ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"]


def test_of_a_converted_dataset_configuration_and_split_are_chosen() -> None:
    assert converted(PARQUET, parse(f"hf:{ID}")) == PARQUET[:2]
    assert converted(PARQUET, parse(f"hf:{ID}/test")) == PARQUET[2:]
    more = [*PARQUET, "other/train/0000.parquet", "other/partial-big/0000.parquet"]
    assert converted(more, parse(f"hf:{ID}")) == PARQUET[:2]
    assert converted(more, parse(f"hf:{ID}/other/train")) == more[3:4]
    assert converted(more, parse(f"hf:{ID}/other/big")) == more[4:]
    assert converted(["README.md"], parse(f"hf:{ID}")) == []
    with pytest.raises(UserError, match="no split 'dev'; there are: test, train"):
        converted(PARQUET, parse(f"hf:{ID}/dev"))
    two = [name.replace("default", config) for name in PARQUET for config in ("en", "de")]
    with pytest.raises(UserError, match=r"no configuration .*there are: de, en") as raised:
        converted(two, parse(f"hf:{ID}"))
    assert raised.value.do == f"--data hf:{ID}/de/train"


def test_where_no_file_is_named_after_a_split_all_are_taken() -> None:
    files = ["a.csv", "b.jsonl.gz", "README.md", ".hidden/c.csv", "constraints.txt"]
    assert as_they_are(files, parse(f"hf:{ID}")) == ["a.csv", "b.jsonl.gz", "constraints.txt"]
    assert as_they_are(["training.csv", "train.csv"], parse(f"hf:{ID}")) == ["train.csv"]


@pytest.mark.parametrize("text", ["hf:", "hf:name", "hf:a/b/c/d/e", "hf: a/b"])
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no dataset of the Hub"):
        parse(text)


def test_a_name_with_dots_could_be_one_and_no_path_is_made_of_it() -> None:
    assert parse("hf:a/../b").dataset_id == "a/.."


@pytest.mark.long  # huggingface_hub tries again for half a minute
def test_without_a_network_it_is_said_once_how_to_bring_a_copy(
    hub_env: dict[str, str], tmp_path: Path
) -> None:
    nowhere = hub_env | {"HF_ENDPOINT": "http://hub.invalid"}
    code, said = fetch(nowhere, f"hf:{ID}", tmp_path / "rows")
    assert code == 4
    assert f"`hf download {ID} --repo-type dataset` elsewhere, and --data FOLDER" in said
    assert "model.path" not in said
    assert len(said.splitlines()) == 2, said
