"""A model of the Hub, from the command line to trained steps, from a small Hub on a real socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rundir.status import read_status
from tests.conftest import ROOT
from tests.hub_server import Hub, Model, serving
from tests.models import tiny_model
from tests.running import SHORT, User, assert_nothing_left, ended, events_of, finish, wait_for

ID = "someone/tiny"
RUN = (*SHORT, "--set", "train.max_steps=2", "--set", f"model.path={ID}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with serving(Hub({ID: Model(files)})) as running:
        yield running


@pytest.fixture
def hub_env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "NO_PROXY": "*"}


def test_a_model_of_the_hub_is_fetched_and_trained_and_the_next_run_asks_nobody(
    user: User, hub: Hub, hub_env: dict[str, str]
) -> None:
    code, out, err = user.finish(*RUN, env=hub_env)
    assert code == 0, err
    commit = hub.models[ID].commit
    assert f"fetch: {ID} at {commit[:7]}" in err
    assert f"model: {ID} at {commit[:7]}" in out
    run = user.run()
    assert [event["step"] for event in events_of(run, "metric", "train", rank=0)] == [1, 2]
    assert (run.path / "base_model").resolve().name == commit
    hub.requests.clear()
    shown, _, err = user.finish(*RUN, "--dry-run", env=hub_env | {"HF_HUB_OFFLINE": "1"})
    assert (shown, hub.requests) == (0, []), err


def test_data_are_not_shown_with_a_tokenizer_from_the_network_when_that_is_forbidden(
    user: User, hub: Hub, hub_env: dict[str, str]
) -> None:
    data = ("data", str(ROOT / "examples/tiny/train.jsonl"), "--profile", "tiny")
    offline = hub_env | {"HF_HUB_OFFLINE": "1"}
    code, _, err = user.finish(*data, "--set", f"model.path={ID}", env=offline)
    assert (code, hub.requests) == (4, []), err
    assert "HF_HUB_OFFLINE=1 forbids to fetch" in err


def test_ctrl_c_while_a_model_is_fetched_ends_the_run_and_keeps_what_came(
    user: User, hub: Hub, hub_env: dict[str, str]
) -> None:
    hub.bytes_per_s = 6e5
    with ended(user.airlock(*RUN, env=hub_env)) as process:
        wait_for(
            lambda: list((user.folder / "hf").rglob("*.incomplete")) and hub.sent_bytes() > 2e6,
            why="nothing is fetched",
        )
        os.kill(process.pid, signal.SIGINT)
        code, _, err = finish(process, timeout_s=30)
    assert code == 21, err
    assert "Traceback" not in err
    run = user.run()
    assert read_status(run)["phase"] == "interrupted"
    assert_nothing_left(run)
    assert sum(file.stat().st_size for file in (user.folder / "hf").rglob("*.incomplete")) > 0
