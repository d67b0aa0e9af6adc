"""The card of a model, from the run folder alone: what a colleague needs to do it again."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from rundir.card.curves import curves_svg, named_sets
from rundir.card.model_card import CARD, CURVES, write_card
from rundir.config_file import read_config
from rundir.events import Event, read_events
from tests.launch.run_folders import trained_run

BASE = "model.path=Qwen/Qwen2.5-14B"
COMMIT = "97e1e76335b7017d8f67c08a19d103c0504298c9"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return made


def card_of(folder: Path) -> tuple[dict[str, object], str]:
    """Return the header that the Hub reads, and the text."""
    _, header, text = (folder / CARD).read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(header), text


def test_the_header_names_the_base_its_license_and_the_data(tmp_path: Path, folder: Path) -> None:
    base = tmp_path / "hub" / "snapshots" / COMMIT
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: apache-2.0\nlicense_link: here\n---\n# Qwen\n")
    settings = (BASE, "data.path=hf:ann/chats/train", "data.eval_path=", "train.method=lora")
    write_card(trained_run(tmp_path / "run", *settings, base=base), folder)
    header, text = card_of(folder)
    assert header == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen2.5-14B",
        "base_model_relation": "finetune",
        "license": "apache-2.0",
        "license_link": "here",
        "datasets": ["ann/chats"],
        "tags": ["airlock", "text-generation", "lora"],
    }
    assert f"Qwen/Qwen2.5-14B at {COMMIT}" in text
    assert "| train.lora_rank | 16 |" in text


def test_adapters_alone_say_what_they_are_for(tmp_path: Path, folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    (folder / CARD).write_text("what peft wrote")
    write_card(trained_run(tmp_path / "run", BASE, "train.method=lora"), folder)
    header, _ = card_of(folder)
    assert (header["library_name"], header["base_model_relation"]) == ("peft", "adapter")
    assert "license" not in header  # nothing is known of it


def test_the_card_has_all_that_it_takes_to_do_it_again(tmp_path: Path, folder: Path) -> None:
    run = trained_run(tmp_path / "run")
    files = [{"name": "train.jsonl", "size_bytes": 1234567, "sha256": "ab" * 32}]
    run.data_files.write_text(json.dumps(files))
    write_card(run, folder)
    header, text = card_of(folder)
    assert "base_model" not in header  # new weights
    for words in (
        "after step 2 of 4, with a held-out loss of 1.2500",
        "| 4 | 1.5000 |",
        f"![loss by step]({CURVES})",
        "90 samples (content `0123abcd`) of train.jsonl",
        "evaluated on 10 samples",
        f"| train.jsonl | 1,234,567 | `{'ab' * 32}` |",
        "| train.learning_rate | 0.003 |",
        "| train.seed | 0 |",
        "python 3.",
        "torch ",
        "./start.sh --again run --num-gpus 1",
    ):
        assert words in text, words
    assert str(tmp_path) not in text  # whose folders these are concerns nobody
    assert read_config(folder / "airlock" / "config.toml").train.learning_rate == 0.003


def test_without_evaluation_git_or_metrics_the_card_is_shorter(
    tmp_path: Path, folder: Path
) -> None:
    run = trained_run(tmp_path / "run")
    run.event_file("rank0").unlink()
    run.made_with.unlink()
    write_card(run, folder)
    _, text = card_of(folder)
    assert "Airlock at commit unknown" in text
    assert CURVES not in text
    assert not (folder / CURVES).exists()


def test_the_curves_are_a_picture_of_both_losses(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    root = ET.fromstring(curves_svg(read_events(run.events)))  # noqa: S314 - our own
    lines = [element for element in root if element.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [4, 3]
    assert "held-out loss" in "".join(root.itertext())
    assert curves_svg([]) == ""


def test_named_sets_are_told_by_their_first_and_last_evaluation() -> None:
    def told(name: str, step: int, loss: float) -> Event:
        figures = {"step": step, "loss": loss, "exact_match": None, "num_samples": 1234}
        return {"kind": "metric", "name": "eval.set", "set": name, **figures}

    events = [told("hard", 0, 3.0), told("hard", 5, 2.5), told("hard", 9, 2.0), told("new", 9, 1.0)]
    assert list(named_sets(events))[-3:] == [
        "| hard | 0 | 3.0000 |  | 1,234 |",
        "| hard | 9 | 2.0000 |  | 1,234 |",
        "| new | 9 | 1.0000 |  | 1,234 |",
    ]
    assert list(named_sets([])) == []
