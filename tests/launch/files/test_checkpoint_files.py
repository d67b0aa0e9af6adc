"""The weights of a model folder: damage is named before any start, intact files are described.

All files written here are real, and the real libraries read or refuse them.
"""

from __future__ import annotations

import json
import pickle
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from launch.files.checkpoint_files import Checkpoint, read_checkpoint
from launch.files.weight_file import read_pickle
from rundir.errors import ExitCode, UserError
from tests.running import python
from tests.train.step.test_loop import configured
from train.model.make_checkpoint import make_checkpoint

INDEX = "model.safetensors.index.json"


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    return {
        "a": torch.ones(64, 8, dtype=dtype),
        "b": torch.ones(8, dtype=torch.float32),
        "position_ids": torch.arange(2000),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a model in one file."""
    (tmp_path / "config.json").write_text("{}")
    save_file(weights(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Make a model in two files, and an index that names the second one first."""
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.ones(9)}, tmp_path / "1.safetensors")
    save_file({"b": torch.ones(5)}, tmp_path / "2.safetensors")
    table = {"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(table))
    return tmp_path


def test_a_whole_file_is_described(folder: Path) -> None:
    file = folder / "model.safetensors"
    assert read_checkpoint(folder) == Checkpoint(
        files=(file,),
        size_bytes=file.stat().st_size,
        dtypes=frozenset({"bfloat16"}),
        is_pickle=False,
        is_mapped=True,
    )


def test_shards_come_in_the_order_of_the_index(sharded: Path) -> None:
    found = read_checkpoint(sharded)
    assert [file.name for file in found.files] == ["2.safetensors", "1.safetensors"]
    assert found.size_bytes == sum(file.stat().st_size for file in found.files)
    assert found.dtypes == {"float32"}


def test_the_file_that_config_json_names_is_the_one_that_counts(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "config.json").write_text('{"transformers_weights": "other.safetensors"}')
    assert read_checkpoint(folder).files == (folder / "other.safetensors",)


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as content:
        content.truncate(size)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4932307584\n"

DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty file": (lambda file: cut(file, 0), "the file has 0"),
    "cut within the length": (lambda file: cut(file, 5), "the file has 5"),
    "cut within the header": (lambda file: cut(file, 40), "the file has 40"),
    "cut within the weights": (lambda file: cut(file, 2000), "and has 2,000"),
    "cut by one byte": (lambda file: cut(file, file.stat().st_size - 1), "it should have"),
    "one byte too long": (lambda file: cut(file, file.stat().st_size + 1), "it should have"),
    "a page of HTML": (lambda file: file.write_text("<html>404</html>" * 99), "its header would"),
    "a header that is not valid JSON": (
        lambda file: file.write_bytes((4).to_bytes(8, "little") + b"{{{{"),
        "cannot be read",
    ),
    "a header that is a list": (
        lambda file: file.write_bytes((2).to_bytes(8, "little") + b"[]"),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_named_and_safetensors_refuses_it_too(folder: Path, case: str) -> None:
    file = folder / "model.safetensors"
    read_checkpoint(folder)
    damage, words = DAMAGE[case]
    damage(file)
    with pytest.raises(SafetensorError), safe_open(file, "pt"):
        pass
    with pytest.raises(UserError) as raised:
        read_checkpoint(folder)
    assert str(file) in str(raised.value)
    assert words in str(raised.value)
    assert f"rm {file}" in raised.value.do
    assert raised.value.code is ExitCode.PREFLIGHT


def test_a_git_lfs_pointer_is_called_what_it_is(folder: Path, sharded: Path) -> None:
    (folder / "model.safetensors").unlink()
    (sharded / "2.safetensors").write_text(LFS)
    with pytest.raises(UserError, match=f"pointer of {len(LFS)} bytes") as raised:
        read_checkpoint(sharded)
    assert raised.value.do == f"git -C {sharded} lfs pull"


INDICES: dict[str, tuple[str, list[str]]] = {
    "a shard that is not there": (
        '{"weight_map": {"a": "1.safetensors", "c": "3.safetensors", "d": "4.safetensors"}}',
        [INDEX, "3.safetensors, which is not there", "1 others"],
    ),
    "a tensor that its shard lacks": (
        '{"weight_map": {"a": "1.safetensors", "z": "2.safetensors", "b": "2.safetensors"}}',
        ["2.safetensors", f"{INDEX} says that it holds z"],
    ),
    "a tensor that is in another shard too": (
        '{"weight_map": {"a": "1.safetensors", "b": "both.safetensors"}}',
        ["both.safetensors: it holds a", f"{INDEX} has in 1.safetensors"],
    ),
    "no shards": ('{"weight_map": {}}', ["it names no file"]),
    "no map": ("{}", ["no index of weights"]),
    "no JSON": ('{"weight_map"', ["no index of weights"]),
    "a list": ("[]", ["no index of weights"]),
    "a map to numbers": ('{"weight_map": {"a": 1}}', ["no index of weights"]),
}


@pytest.mark.parametrize("case", INDICES)
def test_an_index_that_does_not_belong_to_its_shards_is_named(sharded: Path, case: str) -> None:
    text, words = INDICES[case]
    save_file({"a": torch.ones(9), "b": torch.ones(5)}, sharded / "both.safetensors")
    (sharded / INDEX).write_text(text)
    with pytest.raises(UserError) as raised:
        read_checkpoint(sharded)
    for word in words:
        assert word in str(raised.value)


def test_a_tensor_that_no_index_names_is_no_damage_as_transformers_loads_it(sharded: Path) -> None:
    save_file({"b": torch.ones(5), "inv_freq": torch.ones(3)}, sharded / "2.safetensors")
    assert read_checkpoint(sharded).dtypes == {"float32"}


@pytest.mark.parametrize("name", ["model.safetensors", "2.safetensors"])
def test_a_link_to_nothing_is_called_that(folder: Path, sharded: Path, name: str) -> None:
    if name != "model.safetensors":
        (folder / "model.safetensors").unlink()
    gone = folder / "blobs" / "4d7a"
    (folder / name).unlink()
    (folder / name).symlink_to(gone)
    if name == "model.safetensors":
        (sharded / INDEX).unlink()
    with pytest.raises(UserError) as raised:
        read_checkpoint(folder)
    assert f"{name}, which is a link to {gone}, which is not there" in str(raised.value)
    assert "rm " not in raised.value.do


def test_a_tokenizer_that_is_a_git_lfs_pointer_is_named_too(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(LFS)
    with pytest.raises(UserError, match=r"tokenizer\.json is a git-lfs pointer"):
        read_checkpoint(folder)


MODEL = {"model.embed_tokens.weight": torch.ones(12, 4), "model.norm.weight": torch.ones(4)} | {
    f"model.layers.{i}.mlp.up_proj.weight": torch.ones(8, 4) for i in range(3)
}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"vocab_size": 13, "hidden_size": 4}, "are 13 and 4, the weights have an embedding of 12"),
        ({"vocab_size": 12, "hidden_size": 8}, "are 12 and 8, the weights"),
        ({"num_hidden_layers": 4}, "num_hidden_layers = 4, the weights have 3 layers"),
    ],
)
def test_weights_that_are_not_those_of_config_json_are_refused(
    tmp_path: Path, config: dict[str, object], says: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(MODEL, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=says) as raised:
        read_checkpoint(tmp_path)
    assert raised.value.code is ExitCode.PREFLIGHT


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 12, "hidden_size": 4, "num_hidden_layers": 3},
        {"vocab_size": 12, "hidden_size": 4, "num_hidden_layers": 2},  # one more does no harm
        {"model_type": "of another kind"},
    ],
)
def test_weights_that_may_be_those_of_config_json_pass(
    tmp_path: Path, config: dict[str, object]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(MODEL, tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path).dtypes == {"float32"}


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_folder_without_a_model_says_what_is_missing(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(UserError, match=missing):
        read_checkpoint(folder)


class RunsCode:
    """An object whose unpickling would run code, which is why nothing is ever unpickled here."""

    def __init__(self, deed: str) -> None:
        self.deed = deed

    def __reduce__(self) -> Any:
        import os

        return os.system, (self.deed,)


def save_pickle(folder: Path, what: Any, *, old: bool = False) -> Path:
    (folder / "config.json").write_text("{}")
    file = folder / "pytorch_model.bin"
    torch.save(what, file, _use_new_zipfile_serialization=not old)
    return file


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_pickle_of_weights_is_described_without_being_loaded(
    tmp_path: Path, dtype: torch.dtype, old: bool
) -> None:
    content = {
        "a": torch.ones(3, dtype=dtype),
        "b": torch.nn.Parameter(torch.ones(2, dtype=dtype)),
        "c": torch.ones(9, dtype=dtype).to_sparse(),
        "d": torch.arange(4),
    }
    file = save_pickle(tmp_path, content, old=old)
    assert torch.load(file, weights_only=True).keys() == content.keys()
    assert read_checkpoint(tmp_path) == Checkpoint(
        files=(file,),
        size_bytes=file.stat().st_size,
        dtypes=frozenset({str(dtype).removeprefix("torch.")}),
        is_pickle=True,
        is_mapped=not old,
    )


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_of_something_else_is_refused_and_not_run(tmp_path: Path, old: bool) -> None:
    sign = tmp_path / "it was run"
    bad = {"a": torch.ones(3), "b": RunsCode(f"touch '{sign}'")}
    file = save_pickle(tmp_path, bad, old=old)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    with pytest.raises(UserError, match=r"more than weights: (posix|nt).system"):
        read_checkpoint(tmp_path)
    assert not sign.exists()
    torch.load(file, weights_only=False)
    assert sign.exists()  # so it would have been


def test_a_whole_pickled_module_is_more_than_weights(tmp_path: Path) -> None:
    save_pickle(tmp_path, torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match=r"torch\.nn\.modules\.linear\.Linear"):
        read_checkpoint(tmp_path)


def test_a_newer_pickle_protocol_hides_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    for _ in range(3):
        with file.open("ab") as content:
            pickle.dump(1, content)
    with file.open("ab") as content:
        pickle.dump({"a": RunsCode("true")}, content, protocol=4)
    assert read_pickle(file).others == ("posix.system",)


@pytest.mark.parametrize("size", [0, 10, 300, -1])
@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_that_is_cut_short_is_damaged(tmp_path: Path, old: bool, size: int) -> None:
    file = save_pickle(tmp_path, {f"a{i}": torch.ones(100) for i in range(50)}, old=old)
    if size < 0:
        if old:
            return  # truncated weights are found only by reading them
        size = file.stat().st_size - 1
    cut(file, size)
    with pytest.raises(UserError, match="no whole pickle"):
        read_checkpoint(tmp_path)


@pytest.mark.long
def test_the_command_that_is_proposed_converts_a_pickle(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_checkpoint(configured(tmp_path), model)
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    advice = read_checkpoint(model).advice("bfloat16")
    assert advice is not None
    text, _, command = advice.partition("\n  → ")
    assert "pytorch_model.bin is a pickle: each rank that reads it holds 0 MiB" in text
    assert "not all of it is bfloat16" in text
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    found = read_checkpoint(model)
    assert found.files == (model / "model.safetensors",)
    assert found.dtypes == {"float32"}
    assert found.advice("bfloat16") is None


def test_what_a_pickle_costs_is_said_as_it_is(tmp_path: Path) -> None:
    save_pickle(tmp_path, {"a": torch.ones(1 << 20)})
    assert "map it, and share" in str(read_checkpoint(tmp_path).advice("float32"))
    assert "holds 2 MiB" in str(read_checkpoint(tmp_path).advice("bfloat16"))
    save_pickle(tmp_path, {"a": torch.ones(1 << 20)}, old=True)
    old = str(read_checkpoint(tmp_path).advice("float32"))
    assert "holds 4 MiB of its own: written before torch 1.6" in old


def test_nothing_heavy_is_loaded_to_look_at_weights(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from launch.files.checkpoint_files import read_checkpoint;"
        f"read_checkpoint(Path({str(folder)!r})); print('torch' in sys.modules)"
    )
    assert python(program) == "False\n"
