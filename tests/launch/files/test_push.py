"""Uploading a model to a Hub on a real socket: what arrives, and what each refusal says to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rundir.paths import RunDir
from tests.hub_server import Hub, Model, serving
from tests.launch.run_folders import trained_run
from tests.running import Typed

REPO, TOKEN = "ann/tiny", "hf_writer"
WEIGHTS = b"weights" * 1000


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({}, tokens={TOKEN, "hf_reader"}, writers={TOKEN})) as running:
        yield running


@pytest.fixture
def run(environ: dict[str, str]) -> RunDir:
    """Return a run that has exported a model, as far as an upload is concerned."""
    made = trained_run(Path(environ["AIRLOCK_RUNS_DIR"]) / "20261120-221500-tiny-3f2a")
    made.model.mkdir()
    (made.model / "model.safetensors").write_bytes(WEIGHTS)
    (made.model / "config.json").write_text('{"model_type": "qwen3"}')
    return made


@pytest.fixture
def env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
    return proxies | {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",  # the test's Hub takes files as Git LFS does
    }


def pushed(typed: Typed, env: dict[str, str], *args: str) -> tuple[int, str]:
    code, out, err = typed("push", *args, env=env)
    assert "Traceback" not in err, err
    return code, out + err


def test_the_model_arrives_with_its_card_in_a_private_repository(
    typed: Typed, env: dict[str, str], hub: Hub, run: RunDir
) -> None:
    code, said = pushed(typed, env, run.run_id, REPO)
    assert code == 0, said
    assert f"{hub.url}/{REPO} has the model" in said
    (asked,) = hub.made
    assert asked.get("private") or asked.get("visibility") == "private"
    files = hub.models[REPO].files
    assert files["model.safetensors"] == WEIGHTS
    assert files["README.md"].startswith(b"---\nlibrary_name: transformers\n")
    assert {"airlock/config.toml", "training_curves.svg", "config.json"} <= files.keys()
    code, said = pushed(typed, env, run.run_id, REPO)
    assert (code, "has these files already" in said) == (0, True)


def test_what_is_there_already_is_kept_unless_it_may_be_replaced(
    typed: Typed, env: dict[str, str], hub: Hub, run: RunDir
) -> None:
    hub.models[REPO] = Model({"model.safetensors": b"of somebody else", ".gitattributes": b""})
    code, said = pushed(typed, env, str(run.path), REPO)
    assert code == 4
    assert f"{REPO} holds other files than this model's: model.safetensors" in said
    assert re.search(rf"→ \./airlock push \S*{run.run_id} {REPO}-2   #.* --replace", said)
    assert hub.models[REPO].files["model.safetensors"] == b"of somebody else"
    code, said = pushed(typed, env, str(run.path), REPO, "--replace")
    assert code == 0, said
    assert hub.models[REPO].files["model.safetensors"] == WEIGHTS


def test_an_upload_that_broke_off_goes_on(
    typed: Typed, env: dict[str, str], hub: Hub, run: RunDir
) -> None:
    config = (run.model / "config.json").read_bytes()
    hub.models[REPO] = Model({"config.json": config})
    code, said = pushed(typed, env, run.run_id, REPO)
    assert code == 0, said
    assert hub.models[REPO].files["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize(
    ("changes", "what", "do"),
    [
        ({"HF_TOKEN": ""}, "there is no token", r"HF_TOKEN=hf_… \./airlock push .* ann/tiny"),
        ({"HF_TOKEN": "hf_reader"}, "has no right to write to ann/tiny", r"push .* YOUR_NAME/tiny"),
        ({"HF_TOKEN": "hf_wrong"}, "does not accept HF_TOKEN", r"HF_TOKEN=hf_… \./airlock push"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set", r"env -u HF_HUB_OFFLINE \./airlock pus"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot reach", r"curl -sI http://127\.0\.0\.1:9"),
    ],
)
def test_each_refusal_says_what_to_type_next(
    typed: Typed,
    env: dict[str, str],
    run: RunDir,
    changes: dict[str, str],
    what: str,
    do: str,
) -> None:
    code, said = pushed(typed, env | changes, run.run_id, REPO)
    assert code == 4
    assert what in said
    assert re.search(rf"→ .*{do}", said), said


def test_a_name_or_a_run_that_cannot_be_is_said(
    typed: Typed, env: dict[str, str], hub: Hub, run: RunDir
) -> None:
    for args, words in (
        ((run.run_id, "tiny"), "'tiny' is not OWNER/NAME"),
        (("nothing", REPO), "no run 'nothing'"),
        ((run.run_id, REPO, "--adapter"), "no adapters to upload alone"),
    ):
        code, said = pushed(typed, env, *args)
        assert (code, words in said) == (2, True), said
    assert hub.requests == []
