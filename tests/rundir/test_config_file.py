"""config.toml: every value comes back unchanged, with its source beside it."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from rundir.config import SECTIONS, RunConfig, ScriptConfig
from rundir.config_file import config_text, is_of_script, read_config

FIELDS = [(section, item.name) for section, cls in SECTIONS.items() for item in fields(cls)]

TEXTS = {
    "quotes": "a \"double\" and a 'single' one, and '''three''' \"\"\"of them\"\"\"",
    "backslashes": r"C:\new\table\u0041 \\ \"",
    "newlines": "one\ntwo\r\nthree\rfour\n",
    "controls": "".join(map(chr, range(32))),
    "delete": "a\x7fb",
    "unicode": "grüße 你好 🚀 \u2028 \u0085 \ufeff",
    "comment": "a # b = [c] {d}",
    "empty": "",
    "spaces": "  a\t ",
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "list": {"eos_token_id": [1, 2], "empty": [], "nested": [[1], [2, 3]], "mixed": ["a", 1.5]},
    "table": {"rope_scaling": {"type": "yarn", "factor": 4.0, "deep": {"a b": [{"c": True}]}}},
    "empty table": {"rope_scaling": {}},
    "numbers": {"a": 1e-5, "b": 1e22, "c": 1000000.0, "d": 0.1 + 0.2, "e": -3, "f": 10**30},
    "texts": {f"t{i}": text for i, text in enumerate(TEXTS.values())},
    "quoted keys": {"table": {'a"b': 1, "a.b": 2, "": 3, "ü": 4}},
    "infinite": {"time_step_limit": [0.0, float("inf")]},
    "key with a dot": {"layers.0": 1},
    "key with a space": {"a b": 1},
}


def another(section: str, key: str) -> Any:
    """Return a value of the field's type that is not its default."""
    cls = SECTIONS[section]
    hint, default = get_type_hints(cls)[key], getattr(cls(), key)
    if choices := get_args(hint):
        if int in choices:
            return 12_345
        return choices[-1] if choices[-1] != default else choices[0]
    return {bool: not default, int: 12_345, float: 2.5e-7, str: "x/y z.jsonl"}[hint]


def round_trip(config: RunConfig, tmp_path: Path) -> RunConfig:
    path = tmp_path / "config.toml"
    path.write_text(config_text(config, {}), encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_comes_back(section: str, tmp_path: Path) -> None:
    keys = [item.name for item in fields(SECTIONS[section])]
    changed = SECTIONS[section](**{key: another(section, key) for key in keys})
    config = replace(RunConfig(profile="p"), **{section: changed})
    again = round_trip(config, tmp_path)
    assert again == config
    for key in keys:
        assert type(getattr(getattr(again, section), key)) is type(another(section, key)), key


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_any_text_comes_back(text: str, tmp_path: Path) -> None:
    config = RunConfig(profile=text, data=replace(RunConfig(profile="").data, path=text))
    assert round_trip(config, tmp_path) == config


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_any_architecture_comes_back(architecture: dict[str, Any], tmp_path: Path) -> None:
    again = round_trip(RunConfig(profile="p", architecture=architecture), tmp_path).architecture
    assert again == architecture
    assert list(map(type, again.values())) == list(map(type, architecture.values()))


def test_the_source_of_each_value_stands_beside_it() -> None:
    config = RunConfig(profile="p", architecture={"vocab_size": 7})
    sources = {f"{section}.{key}": f"source of {section}.{key}" for section, key in FIELDS}
    text = config_text(config, sources)
    section, checked = "", set()
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif " = " in line and section in SECTIONS:
            key = line.partition(" = ")[0]
            assert line.endswith(f"  # source of {section}.{key}")
            checked.add((section, key))
    assert checked == set(FIELDS)
    assert "vocab_size = 7  # profile" in text


def test_a_person_can_read_it_as_plain_toml() -> None:
    table = tomllib.loads(config_text(RunConfig(profile="p"), {}))
    assert table["profile"] == "p"
    assert table["train"]["learning_rate"] == 1e-4
    assert set(table) == {"profile", "architecture", *SECTIONS}


def test_a_torn_file_is_an_error_and_so_is_none(tmp_path: Path) -> None:
    text = config_text(RunConfig(profile="p", architecture={"a": "b" * 100}), {})
    path = tmp_path / "config.toml"
    with pytest.raises(FileNotFoundError):
        read_config(path)
    for keep in (0.3, 0.9, 0.99):
        path.write_text(text[: int(len(text) * keep)], encoding="utf-8")
        with pytest.raises(ValueError, match=r"."):
            read_config(path)


def test_a_run_is_of_a_script_only_if_its_configuration_says_so(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert not is_of_script(path)
    for text in ("", "[", "\x00", config_text(RunConfig(profile="x"), {})):
        path.write_text(text)
        assert not is_of_script(path)
    config = RunConfig(profile="x", script=ScriptConfig(path="/a/train.py"))
    path.write_text(config_text(config, {}))
    assert is_of_script(path)
