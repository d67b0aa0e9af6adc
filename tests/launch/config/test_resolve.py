"""Profile, environment and options become one configuration, and each value knows its source."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import launch.config.profiles
from launch.config.profiles import load_profile
from launch.config.resolve import resolve
from launch.config.setting_values import env_names
from rundir.config import SECTIONS, RunConfig
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT
from rundir.starts import start_of

SHIPPED = sorted(path.stem for path in (ROOT / "profiles").glob("*.toml"))


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of profiles for this test only."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    monkeypatch.setattr(launch.config.profiles, "PROFILES", folder)
    return folder


def value(config: RunConfig, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


@pytest.mark.parametrize(
    ("key", "text", "meant", "other", "in_profile", "default"),
    [
        ("train.max_steps", "7", 7, "3", 400, 0),
        ("train.learning_rate", "0.5", 0.5, "3", 3e-3, 1e-4),
        ("train.method", "lora", "lora", "full", "full", "lora"),
        ("train.eval_generate", "no", False, "yes", True, False),
    ],
)
def test_an_option_beats_the_environment_beats_the_profile_beats_the_default(
    profiles: Path, key: str, text: str, meant: Any, other: str, in_profile: Any, default: Any
) -> None:
    (profiles / "p.toml").write_bytes((ROOT / "profiles" / "tiny.toml").read_bytes())
    (profiles / "none.toml").touch()
    section, _, name = key.partition(".")
    variable = f"AIRLOCK_{section.upper()}_{name.upper()}"

    config, sources = resolve("p", [f"{key}={text}"], {variable: other})
    assert (value(config, key), sources[key]) == (meant, f"option --set {key}")
    config, sources = resolve("p", [], {variable: text})
    assert (value(config, key), sources[key]) == (meant, f"environment {variable}")
    config, sources = resolve("p", [], {variable: " "})  # set, but blank
    assert (value(config, key), sources[key]) == (in_profile, "profile p.toml")
    config, sources = resolve("none", [], {})
    assert (value(config, key), sources[key]) == (default, "default")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("data.max_samples", "AIRLOCK_DATA_MAX_SAMPLES"),
        ("train.learning_rate", "AIRLOCK_TRAIN_LEARNING_RATE"),
        ("limits.rlimit_as_gib", "AIRLOCK_RLIMIT_AS_GIB"),
    ],
)
def test_each_key_has_a_variable_by_rule(key: str, name: str) -> None:
    assert env_names(key)[0] == name
    assert value(resolve("tiny", [], {name: "3"})[0], key) == 3


def test_every_value_has_a_source_and_a_variable_of_its_own() -> None:
    sources = resolve("tiny", [], {})[1]
    for section, cls in SECTIONS.items():
        assert all(sources[f"{section}.{item.name}"] for item in fields(cls))
    assert len({env_names(key)[0] for key in sources}) == len(sources)


@pytest.mark.parametrize(("typo", "near"), [("tinny", "tiny"), ("32", "32b"), ("14B", "14b")])
def test_an_unknown_profile_is_answered_with_the_nearest(typo: str, near: str) -> None:
    with pytest.raises(UserError, match=f"no profile '{typo}'") as raised:
        resolve(typo, [], {})
    assert raised.value.do.partition("   #")[0] == f"./start.sh {near}"
    assert raised.value.code == ExitCode.USAGE
    for no_name in ("../profiles/tiny", "", "/etc/passwd", "tiny.toml"):
        with pytest.raises(UserError, match="no profile"):
            load_profile(no_name)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.learningrate=1", "--set: unknown key.*perhaps train.learning_rate?"),
        ("max_steps=1", "--set: unknown key.*perhaps train.max_steps?"),
        ("data.pth=x", "--set: unknown key.*perhaps data.path?"),
        ("Train.Seed=1", "--set: unknown key.*perhaps train.seed?"),
        ("train.seed", "has no value.*as in train.max_steps=10"),
    ],
)
def test_a_setting_that_cannot_be_is_answered_with_the_nearest(setting: str, says: str) -> None:
    with pytest.raises(UserError, match=re.compile(says, re.DOTALL)):
        resolve("tiny", [setting], {})


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.max_steps=ten", "'ten', not a whole number"),
        ("train.max_steps=1.5", "'1.5', not a whole number"),
        ("train.max_steps=", "'', not a whole number"),
        ("train.max_steps=-1", "is -1, the least is 0"),
        pytest.param("train.max_steps=1" + "0" * 400, "is 1000", id="huge"),
        ("train.global_batch_size=0", "is 0, the least is 1"),
        ("data.max_seq_length=7", "is 7, the least is 8"),
        ("train.learning_rate=fast", "'fast', not a number"),
        ("train.learning_rate=-1e-9", "is -1e-09, the least is 0"),
        ("train.adam_beta1=1", "is 1.0, it has to be below 1"),
        ("train.adam_beta2=-0.1", "is -0.1, the least is 0"),
        ("train.adam_beta2=nan", "is nan, it has to be below 1"),
        ("train.min_lr_ratio=10", "is 10.0, it has to be below 1"),
        ("train.learning_rate=nan", "is nan"),
        ("train.learning_rate=inf", "is inf"),
        ("train.learning_rate=1e999", "is inf"),
        ("launch.gate_timeout_s=0.5", "is 0.5, the least is 1"),
        ("train.eval_generate=maybe", "'maybe', not true or false"),
        ("train.eval_generate=2", "'2', not true or false"),
        ("train.method=dora", "is 'dora'\n  → one of full, lora, qlora"),
        ("model.dtype=float16", "is 'float16'"),
        ("model.gradient_checkpointing=-1", "is '-1'\n  → one of auto, true, false or a number"),
        ("model.gradient_checkpointing=1.5", "one of auto, true, false or a number"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_named(setting: str, says: str) -> None:
    key, _, text = setting.partition("=")
    with pytest.raises(UserError) as raised:
        resolve("tiny", [setting], {})
    assert f"{key} (option --set {key}) " in str(raised.value)
    assert says in str(raised.value)
    if text:
        with pytest.raises(UserError, match=env_names(key)[0]):
            resolve("tiny", [], {env_names(key)[0]: text})


def test_in_four_bits_the_zygote_only_imports_unless_told_otherwise() -> None:
    config, sources = resolve("tiny", ["train.method=qlora"], {})
    assert config.launch.start == "imports"
    assert sources["launch.start"] == "as train.method is qlora"
    config, _ = resolve("tiny", ["train.method=qlora", "launch.start=cold"], {})
    assert config.launch.start == "cold"
    with pytest.raises(UserError, match="do not go together with method qlora"):
        start_of(resolve("tiny", ["train.method=qlora", "launch.start=warm"], {})[0])


def test_true_and_false_can_be_said_in_several_ways() -> None:
    for meant, texts in ((True, ("1", "true", "YES")), (False, ("0", "False", "no"))):
        for text in texts:
            config, _ = resolve("tiny", [f"train.eval_generate={text}"], {})
            assert config.train.eval_generate is meant


@pytest.mark.parametrize(
    ("text", "meant"), [("1", True), ("0", False), ("no", False), ("auto", "auto"), (" 7 ", 7)]
)
def test_a_choice_may_also_be_a_number(text: str, meant: bool | int | str) -> None:
    key = "model.gradient_checkpointing"
    for config, _ in (resolve("tiny", [f"{key}={text}"], {}), resolve("tiny", [], of_env(text))):
        assert config.model.gradient_checkpointing == meant
        assert type(config.model.gradient_checkpointing) is type(meant)


def test_a_choice_may_also_be_a_number_in_a_profile(profiles: Path) -> None:
    (profiles / "n.toml").write_text("[model]\ngradient_checkpointing = 3", encoding="utf-8")
    assert resolve("n", [], {})[0].model.gradient_checkpointing == 3


def of_env(text: str) -> dict[str, str]:
    return {"AIRLOCK_MODEL_GRADIENT_CHECKPOINTING": text}


def test_a_whole_number_serves_as_a_number_and_a_value_may_hold_an_equals_sign() -> None:
    assert resolve("tiny", ["train.seed=1", "train.seed= 2 "], {})[0].train.seed == 2  # the last
    config = resolve("tiny", ["train.epochs=2", "data.path=/a=b"], {})[0]
    assert config.train.epochs == 2.0
    assert isinstance(config.train.epochs, float)
    assert config.data.path == "/a=b"


def test_a_profiles_data_lie_in_the_clone_a_persons_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = resolve("tiny", [], {})[0].data
    assert data.path == str(ROOT / "examples/tiny/train.jsonl")
    assert Path(data.eval_path).is_file()
    here = str(tmp_path / "mine.jsonl")
    assert resolve("tiny", ["data.path=mine.jsonl"], {})[0].data.path == here
    assert resolve("tiny", [], {"AIRLOCK_DATA_PATH": "mine.jsonl"})[0].data.path == here
    assert resolve("tiny", ["data.path=/abs/mine.jsonl"], {})[0].data.path == "/abs/mine.jsonl"
    home = os.path.expanduser("~/mine.jsonl")  # noqa: PTH111 - as the shell expands it
    assert resolve("tiny", ["data.path=~/mine.jsonl"], {})[0].data.path == home
    assert resolve("tiny", ["data.eval_path="], {})[0].data.eval_path == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train\nseed = 1", "not valid TOML"),
        ("[train]\nseed = 1\nseed = 2", "not valid TOML"),
        ("[train]\nmethod = '\xff'", "not valid TOML"),
        ("[trian]\nseed = 1", "no section [trian]"),
        ("seed = 1", "no section [seed]"),
        ("train = 1", "no section [train]"),
        ("architecture = 1", "architecture"),
        ("[train]\nsede = 1", "unknown key 'train.sede'"),
        ("[train]\nseed = '1'", "is '1', not a whole number"),
        ("[train]\nseed = true", "is True, not a whole number"),
        ("[train]\nepochs = nan", "is nan"),
        ("[train]\neval_generate = 1", "is 1, not true or false"),
        ("[train]\nmethod = ['full']", "is ['full'], not text"),
        ("[data]\npath = 1", "is 1, not text"),
    ],
)
def test_a_broken_profile_is_named_with_what_is_wrong(profiles: Path, text: str, says: str) -> None:
    (profiles / "bad.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as raised:
        resolve("bad", [], {})
    assert says in str(raised.value)
    assert "bad.toml" in str(raised.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_can_be_resolved(name: str) -> None:
    from transformers import CONFIG_MAPPING

    config, sources = resolve(name, [], {})
    assert config.profile == name
    assert config.architecture["model_type"] in CONFIG_MAPPING
    assert f"profile {name}.toml" in sources.values()
    assert config.train.global_batch_size % 8 == 0  # divides among 1, 4 and 8 ranks


def test_another_model_than_the_profiles_does_not_have_its_architecture() -> None:
    assert resolve("32b", [], {})[0].architecture
    assert not resolve("32b", ["model.path=Some/Model"], {})[0].architecture
    assert not resolve("32b", [], {"AIRLOCK_MODEL_PATH": "/some/folder"})[0].architecture
    assert resolve("tiny", ["model.path="], {})[0].architecture
