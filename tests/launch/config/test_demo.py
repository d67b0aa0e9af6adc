"""The demo of a profile: small, on the clone's data, and no more than that is changed."""

from __future__ import annotations

from pathlib import Path

from launch.config.demo import DEMO, cut_down, with_demo
from launch.config.job import resolve_job
from launch.config.profiles import PROFILES
from launch.config.request import RUN, Request
from launch.config.resolve import resolve
from launch.files.data_file import check_data
from rundir.config import DataConfig, RunConfig, Sources
from rundir.paths import ROOT
from rundir.starts import start_of


def demo(profile: str, *settings: str) -> tuple[RunConfig, Sources]:
    return resolve_job(Request(profile=profile, settings=settings, demo=True), {})


def test_every_profile_has_one_on_data_of_the_clone() -> None:
    configs: dict[DataConfig, RunConfig] = {}
    for profile in sorted(file.stem for file in PROFILES.glob("*.toml")):
        config, sources = demo(profile)
        configs[config.data] = config
        assert Path(config.data.path).is_relative_to(ROOT / "examples")
        assert (config.train.max_steps, sources["train.max_steps"]) == (5, DEMO)
        assert not config.launch.needs_gpu
        assert config.train.method == resolve(profile, (), {})[0].train.method
    for config in configs.values():
        check_data(config)


def test_what_the_user_sets_stays(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    config, sources = demo("32b", f"data.path={own}", "train.max_steps=3", "launch.needs_gpu=true")
    assert config.data.path == str(own)
    assert config.data.max_seq_length == 4096
    assert config.train.evolution_prompts == 0  # nothing is generated before and after 3 steps
    assert (config.train.max_steps, config.launch.needs_gpu) == (3, True)
    assert sources["data.path"] == "option --set data.path"


def test_a_model_is_cut_down_to_two_layers_of_its_shape_with_random_weights() -> None:
    config, sources = demo("32b")
    config.architecture["layer_types"] = ["full_attention"] * 64
    cut = cut_down(config, sources)
    assert cut is not None
    small, its_sources = cut
    of_layers = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    assert small.architecture == config.architecture | of_layers
    assert (small.model.path, small.launch.load, small.launch.start) == ("", "random", "imports")
    assert its_sources["model.path"] == "option --demo: 2 of 64 layers, random weights"
    start_of(small)  # a valid combination


def test_the_shape_of_a_local_model_is_read_from_its_files(tmp_path: Path) -> None:
    shape = '"model_type": "qwen3", "num_hidden_layers": 9, "hidden_size": 64'
    (tmp_path / "config.json").write_text(f'{{{shape}, "torch_dtype": "bfloat16"}}')
    config, sources = demo("32b", f"model.path={tmp_path}")
    cut = cut_down(config, sources)
    expected = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64}
    assert cut is not None
    assert cut[0].architecture == expected


def test_a_model_of_which_nothing_is_known_or_to_cut_is_left_whole() -> None:
    assert cut_down(*demo("32b", "model.path=someone/large")) is None
    config, sources = demo("tiny")
    config.architecture["num_hidden_layers"] = 2
    assert cut_down(config, sources) is None


def test_nothing_of_a_run_without_it_changes_and_a_command_made_from_the_request_has_it() -> None:
    assert DEMO not in resolve_job(Request(profile="32b"), {})[1].values()
    config, sources = resolve("tiny", (), {})
    assert with_demo(config, sources)[1]["launch.needs_gpu"] != DEMO
    request = Request(profile="32b", demo=True)
    assert request.command(RUN, {"train.seed": "1"}).endswith(" --demo")
