"""Obstacles to a fetch are reported in two lines, with what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.hub_server import Hub
from tests.launch.files.test_fetch import ID, hub, start_fetch
from tests.running import finish

__all__ = ["hub"]  # its fixture


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


CASES: dict[str, tuple[dict[str, object], dict[str, str], list[str]]] = {
    "gated, without a token": (
        {"gated": True},
        {},
        ["is gated, and there is no HF_TOKEN", f"access at URL/{ID}"],
    ),
    "gated, with a token": (
        {"gated": True},
        {"HF_TOKEN": "hf_good"},
        ["the account of HF_TOKEN has not been let in", f"access at URL/{ID}"],
    ),
    "private, without a token": (
        {"private": True},
        {},
        [f"no model {ID} at URL, or it is private", "no HF_TOKEN", "URL/settings/tokens"],
    ),
    "not there, with a token": (
        {"id": "someone/none"},
        {"HF_TOKEN": "hf_good"},
        ["no model someone/none", "HF_TOKEN may not see it"],
    ),
    "a token that is none": (
        {},
        {"HF_TOKEN": "hf_old"},
        ["does not accept HF_TOKEN (401)", "URL/settings/tokens"],
    ),
    "another revision": ({"revision": "v9"}, {}, [f"{ID} has no revision 'v9'", "model.revision"]),
    "a name that is none": (
        {"id": "some one/small"},
        {},
        ["'some one/small' is not a valid model name"],
    ),
    "a shard that the Hub lacks": (
        {"without": "model-2-of-2.safetensors"},
        {},
        ["is not whole at the Hub", "model-2-of-2"],
    ),
    "no weights": (
        {"without": "model.safetensors.index.json"},
        {},
        ["no weights to train", "GGUF"],
    ),
    "a Hub that is down": ({"status": 503}, {}, ["the Hub answers 503", "start again"]),
    "no Hub": ({"is_html": True}, {}, ["does not answer as the Hub does", "HF_ENDPOINT"]),
    "a Hub that never answers": (
        {"hangs": True},
        {"HF_HUB_ETAG_TIMEOUT": "1"},
        ["from URL: ", "imed", "curl -sI URL"],
    ),
    "nobody at that port": (
        {},
        {"HF_ENDPOINT": "http://127.0.0.1:CLOSED"},
        ["refused", "hf download someone/small"],
    ),
    "no name server": (
        {},
        {"HF_ENDPOINT": "http://hub.invalid"},
        ["from http://hub.invalid: ", "=FOLDER"],
    ),
    "a proxy that is not there": (
        {},
        {"HTTP_PROXY": "http://me:secret@127.0.0.1:CLOSED"},
        ["through the proxy of HTTP_PROXY"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_stands_in_the_way_is_said_in_two_lines_with_what_to_do(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path, case: str
) -> None:
    state, env, parts = CASES[case]
    hub.tokens, model = {"hf_good"}, hub.models[ID]
    for name in ("gated", "private"):
        setattr(model, name, name in state)
    for name in ("status", "is_html", "hangs"):
        setattr(hub, name, state.get(name, 0))
    model.files = {name: data for name, data in model.files.items() if name != state.get("without")}
    env = {name: value.replace("CLOSED", str(closed_port())) for name, value in env.items()}
    process = start_fetch(
        hub_env | env,
        tmp_path / "link",
        model_id=str(state.get("id", ID)),
        revision=str(state.get("revision", "")),
    )
    code, _, said = finish(process)
    assert code == 4, said
    for part in parts:
        assert part.replace("URL", hub.url) in said
    what, do = said.splitlines()
    assert what.startswith("airlock: ")
    assert do.startswith("  → ")
    assert "secret" not in said
    assert not hub.large()
