"""A model is fetched once, a broken fetch is resumed, and obstacles are reported plainly.

With the real huggingface_hub, separate processes, and a small Hub on a real socket.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from launch.files.model_folder import check_model, missing_files, snapshot
from rundir.config import ModelConfig, RunConfig
from rundir.errors import UserError
from tests.hub_server import Hub, Model, serving
from tests.launch.files.conftest import start_child
from tests.running import ended, finish, wait_for

MIB = 1024 * 1024
ID = "someone/small"


def shard(name: str, size_bytes: int) -> bytes:
    """Return a safetensors file with one tensor."""
    number = size_bytes // 4
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [number], "data_offsets": [0, 4 * number]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + Random(name).randbytes(4 * number)


SMALL = {"config.json": b"{}", "tokenizer.json": b"{}", "chat_template.jinja": b"{{ messages }}"}
INDEX = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
WEIGHTS = {
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "model-1-of-2.safetensors": shard("a", 6 * MIB),
    "model-2-of-2.safetensors": shard("b", 6 * MIB),
}
SIZE = sum(len(data) for name, data in WEIGHTS.items() if name.endswith("s"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({ID: Model(SMALL | WEIGHTS)})) as running:
        yield running


def start_fetch(
    env: dict[str, str], link: Path, *what: str, model_id: str = ID, revision: str = ""
) -> subprocess.Popen[str]:
    env = env | {"AIRLOCK_RUN_DIR": str(link.parent)}
    return start_child(env, "launch.files.fetch", model_id, str(link), revision, *what)


def fetched(env: dict[str, str], link: Path, *what: str) -> str:
    """Fetch it; return the output."""
    code, _, said = finish(start_fetch(env, link, *what))
    assert code == 0, said
    return said


def assert_whole(folder: Path) -> None:
    for name, data in (SMALL | WEIGHTS).items():
        is_same = (folder / name).read_bytes() == data  # 12 MiB are not to be shown
        assert is_same, name


def partial_bytes(env: dict[str, str]) -> int:
    return sum(file.stat().st_size for file in Path(env["HF_HOME"]).rglob("*.incomplete"))


def test_what_a_model_is_read_from_is_fetched_once_and_nothing_else(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.models[ID].files |= {
        "consolidated.safetensors": b"twice",
        "pytorch_model.bin": b"twice",
        "README.md": b"-",
        "onnx/model.onnx": b"-",
        "original/params.json": b"{}",
        "LICENSE.txt": b"-",
    }
    said = fetched(hub_env, tmp_path / "link")
    assert f"{ID} at {hub.models[ID].commit[:7]}: 12.0 MiB to fetch of 12.0 MiB" in said
    assert "2 of 2 files" in said
    assert_whole(tmp_path / "link")
    found = {file.name for file in (tmp_path / "link").resolve().rglob("*")}
    assert found == {*SMALL, *WEIGHTS, "LICENSE.txt", "README.md"}  # what its license is
    assert hub.sent_bytes() == SIZE
    hub.requests.clear()
    fetched(hub_env, tmp_path / "second")
    assert hub.requests == []
    assert (tmp_path / "second").resolve() == (tmp_path / "link").resolve()


def test_after_a_kill_only_the_rest_is_fetched(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.bytes_per_s = 2e6
    with ended(start_fetch(hub_env, tmp_path / "first")) as process:
        wait_for(lambda: partial_bytes(hub_env) >= 4 * MIB, why="nothing was written")
        process.kill()
        process.wait()
    kept_bytes, hub.bytes_per_s = partial_bytes(hub_env), 0.0
    hub.requests.clear()
    fetched(hub_env, tmp_path / "link")
    assert_whole(tmp_path / "link")
    assert hub.sent_bytes() == SIZE - kept_bytes
    begun = [int(re.findall(r"\d+", one.range)[0]) for one in hub.large() if one.range]
    assert sum(begun) == kept_bytes
    assert partial_bytes(hub_env) == 0


def test_a_broken_connection_is_taken_up_again(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.break_after_bytes, hub.num_breaks = 2 * MIB, 3
    fetched(hub_env, tmp_path / "link")
    assert_whole(tmp_path / "link")
    assert hub.num_breaks == 0
    begun = [int(re.findall(r"\d+", one.range)[0]) for one in hub.large() if one.range]
    assert sum(begin > 0 for begin in begun) >= 3


def test_pieces_that_do_not_belong_together_are_not_taken_for_the_file(
    hub_env: dict[str, str], tmp_path: Path
) -> None:
    sha256 = hashlib.sha256(WEIGHTS["model-1-of-2.safetensors"]).hexdigest()
    blobs = Path(hub_env["HF_HOME"]) / "hub" / f"models--{ID.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{sha256}.{socket.gethostname()}-{os.getuid()}.incomplete"
    part.write_bytes(bytes(MIB))  # as a node that lost power may leave it
    code, _, said = finish(start_fetch(hub_env, tmp_path / "link"))
    assert code == 4
    assert "pieces that do not fit together" in said
    fetched(hub_env, tmp_path / "link")
    assert_whole(tmp_path / "link")


def test_two_that_want_the_same_fetch_it_once_and_the_second_says_for_whom_it_waits(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.bytes_per_s = 4e6
    with ended(start_fetch(hub_env, tmp_path / "first")) as first:
        wait_for(lambda: hub.sent_bytes() > 0, why="the first does not fetch")
        with ended(start_fetch(hub_env, tmp_path / "second")) as second:
            assert second.stderr is not None
            told = second.stderr.readline()
            assert f"fetched by process {first.pid} of run {tmp_path.name}: waiting" in told
            assert first.poll() is None
            assert [finish(first)[0], finish(second)[0]] == [0, 0]
    assert hub.sent_bytes() == SIZE
    assert (tmp_path / "second").resolve() == (tmp_path / "first").resolve()


def test_a_stop_ends_a_fetch_at_once_keeps_what_is_there_and_frees_the_way(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.bytes_per_s = 1e6
    with ended(start_fetch(hub_env, tmp_path / "first")) as process:
        wait_for(lambda: partial_bytes(hub_env) >= 2 * MIB, why="nothing was written")
        process.terminate()
        code, _, said = finish(process, timeout_s=20)
    assert (code, "Traceback" in said) == (21, False)
    assert partial_bytes(hub_env) >= 2 * MIB
    hub.bytes_per_s = 0.0
    assert "waiting" not in fetched(hub_env, tmp_path / "link")
    assert_whole(tmp_path / "link")


def test_on_a_terminal_progress_is_one_line_with_bytes_rate_and_time_left(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.bytes_per_s = 4e6
    command = shutil.which("script")
    if command is None:
        pytest.skip("no script(1) to make a terminal with")
    inner = shlex.join(
        [sys.executable, "-P", "-m", "launch.files.fetch", ID, str(tmp_path / "link"), ""]
    )
    done = subprocess.run(
        [command, "-qec", inner, "/dev/null"],
        env=hub_env,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    shown = done.stdout.decode()
    assert len(re.findall(r"\rfetch: [^\r\n]*\x1b\[K", shown)) >= 3
    line = r"[\d.]+ MiB of 12\.0 MiB, 0 of 2 files, [\d.]+ MiB/s, 0:\d\d left"
    assert re.search(line, shown)


def test_a_token_goes_to_the_hub_and_not_to_where_the_large_files_come_from(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.models[ID].gated, hub.tokens, hub.let_in = True, {"hf_good"}, {"hf_good"}
    fetched(hub_env | {"HF_TOKEN": "hf_good"}, tmp_path / "link")
    assert {one.token for one in hub.large()} == {None}
    assert {one.token for one in hub.requests if "/resolve/" in one.path} == {"hf_good"}


def test_for_random_weights_none_are_fetched(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    fetched(hub_env, tmp_path / "link", "without-weights")
    assert hub.large() == []
    assert (tmp_path / "link" / "chat_template.jinja").is_file()


def test_a_model_of_pickles_alone_is_fetched_and_loudly_told_so(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path
) -> None:
    hub.models[ID].files = SMALL | {"pytorch_model.bin": b"p" * MIB}
    said = fetched(hub_env, tmp_path / "link")
    assert f"{ID} HAS NO SAFETENSORS: pytorch_model.bin" in said
    assert "weights_only" in said
    assert (tmp_path / "link" / "pytorch_model.bin").stat().st_size == MIB


def test_a_disk_without_room_is_told_with_both_figures_before_the_first_byte(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path, small_disk: Path
) -> None:
    process = start_fetch(hub_env | {"HF_HOME": str(small_disk)}, tmp_path / "link")
    code, _, said = finish(process)
    assert code == 4
    assert re.search(r"takes 12\.0 MiB more in \S+, where [01]\.\d MiB are free", said)
    assert "→ HF_HOME=" in said
    assert hub.large() == []


@pytest.mark.runs
def test_a_disk_that_fills_up_meanwhile_is_told_so_and_a_later_fetch_goes_on(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path, small_disk: Path
) -> None:
    hub.models[ID].files = SMALL | {"model.safetensors": shard("a", 600 * 1024)}
    hub.bytes_per_s, env = 3e5, hub_env | {"HF_HOME": str(small_disk)}
    with ended(start_fetch(env, tmp_path / "link")) as process:
        wait_for(lambda: hub.sent_bytes() > 0, why="it does not fetch")
        with (small_disk / "other").open("wb") as other, pytest.raises(OSError, match="No space"):
            other.write(b"x" * 2 * MIB)
        code, _, said = finish(process)
    assert code == 4
    assert re.search(r"is full \(No space left on device; 0\.0 MiB are free\)", said)
    assert "what was fetched is kept" in said
    (small_disk / "other").unlink()
    fetched(env, tmp_path / "link")


def config_of(model_id: str) -> RunConfig:
    return RunConfig(profile="test", model=ModelConfig(path=model_id))


def test_offline_what_is_whole_is_taken_and_of_the_rest_is_said_what_is_missing(
    hub_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", hub_env["HF_HOME"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="what is missing: all of it"):
        check_model(config_of(ID))
    fetched(hub_env, tmp_path / "link")
    check_model(config_of(ID))
    (tmp_path / "link" / "model-2-of-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"missing: model-2-of-2\.safetensors\n") as raised:
        check_model(config_of(ID))
    assert f"hf download {ID}" in raised.value.do
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    check_model(config_of(ID))  # it will be fetched


def test_a_damaged_file_of_the_cache_is_named_and_once_removed_it_alone_is_fetched(
    hub: Hub, hub_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", hub_env["HF_HOME"])
    fetched(hub_env, tmp_path / "link")
    folder = snapshot(ID, "", os.environ)
    assert folder is not None
    blob = (folder / "model-2-of-2.safetensors").resolve()
    with blob.open("r+b") as file:
        file.truncate(5 * MIB)
    with pytest.raises(UserError, match="it should have") as raised:
        check_model(config_of(ID))
    assert f"rm {blob}," in raised.value.do
    blob.unlink()
    assert missing_files(folder, weights=True) == ["model-2-of-2.safetensors"]
    hub.requests.clear()
    fetched(hub_env, tmp_path / "again")
    assert_whole(folder)
    assert hub.sent_bytes() == len(WEIGHTS["model-2-of-2.safetensors"])
