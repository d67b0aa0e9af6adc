"""The card of an exported model: what it was made of and how, and what it takes to do it again.

Everything in it comes from the run folder. The YAML header is the Hub's:
https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from rundir.card.curves import curves_svg, named_sets
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.data_paths import data_paths
from rundir.events import Event, read_events
from rundir.files.reading import json_object
from rundir.paths import RunDir
from rundir.prepared import PreparedData, read_prepared
from rundir.units import loss_text

CARD, CURVES = "README.md", "training_curves.svg"
RECORDS = "airlock"  # the folder beside the card that ./start.sh --again reads
_SETTINGS = {
    "model": ("revision", "dtype", "attention", "gradient_checkpointing", "compile"),
    "data": ("columns", "loss_on", "max_seq_length", "on_long_row", "packing", "template_options"),
    "train": (
        "method",
        "learning_rate",
        "schedule",
        "min_lr_ratio",
        "warmup_steps",
        "adam_beta1",
        "adam_beta2",
        "weight_decay",
        "max_grad_norm",
        "global_batch_size",
        "max_steps",
        "epochs",
        "optimizer",
        "bf16_updates",
        "lora_rank",
        "lora_alpha",
        "lora_targets",
        "lora_dropout",
        "seed",
    ),
}
_MOST_ROWS, _MOST_FILES = 12, 20
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LICENSE = re.compile(r"^(license(?:_name|_link)?):[ \t]*(\S.*)$", re.MULTILINE)
_SNAPSHOT = re.compile(r"[0-9a-f]{40}")


def write_card(run: RunDir, folder: Path) -> None:
    """Write the card, the curves and the run's records into the folder of a model.

    Raises OSError, and ValueError for a run folder that is not whole.
    """
    config, events = read_config(run.config), read_events(run.events)
    curves = curves_svg(events)
    if curves:
        (folder / CURVES).write_text(curves, encoding="utf-8")
    records = folder / RECORDS
    records.mkdir(exist_ok=True)
    for file in (run.config, run.command, run.made_with, run.prepared):
        if file.is_file():
            shutil.copyfile(file, records / file.name)
    is_adapter = (folder / "adapter_config.json").is_file()
    text = card_text(run, config, events, is_adapter=is_adapter, has_curves=bool(curves))
    (folder / CARD).write_text(text, encoding="utf-8")


def card_text(
    run: RunDir, config: RunConfig, events: list[Event], *, is_adapter: bool, has_curves: bool
) -> str:
    """Return the card as Markdown, with the header that the Hub reads."""
    base = base_name(run, config)
    what = "Adapters for" if is_adapter else "Fine-tuned from"
    parts = [
        *_header(run, config, is_adapter=is_adapter),
        f"# {run.run_id}",
        "",
        f"{what} {base} with Airlock ({config.train.method}).",
        *_scores(events),
        *(["", f"![loss by step]({CURVES})"] if has_curves else []),
        *_data(run, config),
        *_settings(config),
        *_made_with(run, events),
        *_again(run, config, _num_ranks(events)),
    ]
    return "\n".join(parts) + "\n"


def base_name(run: RunDir, config: RunConfig) -> str:
    """Return the name of the base: an id with its commit, a folder's name, or a made-up model."""
    path = config.model.path
    if not path:
        return f"new weights, made from train.seed = {config.train.seed} for this run's profile"
    commit = base_commit(run)
    return (path if is_of_hub(path) else Path(path).name) + (f" at {commit}" if commit else "")


def is_of_hub(path: str) -> bool:
    """Return whether a model's path is an id at the Hub."""
    return bool(_HUB_ID.fullmatch(path)) and not Path(path).is_dir()


def base_commit(run: RunDir) -> str:
    """Return the commit of a base that came from the Hub; "" for any other."""
    name = Path(read_prepared(run).model_path).name
    return name if _SNAPSHOT.fullmatch(name) else ""


def _header(run: RunDir, config: RunConfig, *, is_adapter: bool) -> Iterator[str]:
    base = config.model.path
    yield "---"
    yield f"library_name: {'peft' if is_adapter else 'transformers'}"
    yield "pipeline_tag: text-generation"
    if is_of_hub(base):
        yield f"base_model: {base}"
        yield f"base_model_relation: {'adapter' if is_adapter else 'finetune'}"
        yield from _license(Path(read_prepared(run).model_path))
    names = {data_path.path for data_path in data_paths(config.data.path) if data_path.is_of_hub}
    if names:
        yield "datasets:"
        yield from (f"- {'/'.join(name[3:].split('/')[:2])}" for name in sorted(names))
    yield "tags:"
    yield from (f"- {tag}" for tag in ("airlock", "text-generation", config.train.method))
    yield "---"


def _license(base: Path) -> Iterator[str]:
    """Yield the lines about its license in the header of the base's own card, if it has one."""
    try:
        header = (base / CARD).read_text(encoding="utf-8", errors="replace").split("---")[1]
    except (OSError, IndexError):
        return
    yield from (f"{key}: {value.strip()}" for key, value in _LICENSE.findall(header))


def _scores(events: list[Event]) -> Iterator[str]:
    """Yield what is known of the exported weights on held-out data."""
    choice = next((event for event in reversed(events) if event["name"] == "export.choice"), None)
    evals = {
        event["step"]: event
        for event in events
        if (event["kind"], event["name"]) == ("metric", "eval")
    }
    if choice is not None:
        yield ""
        yield f"The weights are those after step {choice['step']} of {choice['last_step']}" + (
            f", with a held-out loss of {loss_text(choice['loss'])}."
            if choice["loss"] is not None
            else "; nothing was held out to measure them with."
        )
    yield from named_sets(events)
    if not evals:
        return
    yield from ("", "## Held-out data", "", "| step | loss | exact match |", "|---|---|---|")
    steps = sorted(evals)
    kept = [steps[i * (len(steps) - 1) // (_MOST_ROWS - 1)] for i in range(_MOST_ROWS)]
    for step in steps if len(steps) <= _MOST_ROWS else dict.fromkeys(kept):
        match = evals[step]["exact_match"]
        shown = "" if match is None else f"{match:.1%}"
        yield f"| {step} | {loss_text(evals[step]['loss'])} | {shown} |"


def _data(run: RunDir, config: RunConfig) -> Iterator[str]:
    prepared = read_prepared(run)
    yield from ("", "## Data", "")
    yield f"- trained on {_counted(prepared.train)} of {_names(config.data.path)}"
    if prepared.evaluation is not None:
        held_out = _names(config.data.eval_path) if config.data.eval_path else "the same, held out"
        yield f"- evaluated on {_counted(prepared.evaluation)} of {held_out}"
    try:
        files = json.loads(run.data_files.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    yield from ("", "| file | bytes | SHA-256 |", "|---|---|---|")
    for file in files[:_MOST_FILES]:
        yield f"| {file['name']} | {file['size_bytes']:,} | `{file['sha256']}` |"
    if len(files) > _MOST_FILES:
        yield f"| and {len(files) - _MOST_FILES:,} more | | |"


def _counted(data: PreparedData) -> str:
    content = data.made_of.get("files", "")
    return f"{data.num_samples:,} samples" + (f" (content `{content}`)" if content else "")


def _names(text: str) -> str:
    """Return the names of data without the folders, which concern nobody else."""
    weights = ((data_path.name, data_path.weight) for data_path in data_paths(text))
    return ", ".join(name if weight == 1 else f"{name}:{weight:g}" for name, weight in weights)


def _settings(config: RunConfig) -> Iterator[str]:
    yield from ("", "## Settings", "", "| setting | value |", "|---|---|")
    for section, names in _SETTINGS.items():
        values = getattr(config, section)
        for name in names:
            if name.startswith("lora_") and config.train.method == "full":
                continue
            if (value := getattr(values, name)) != "":
                yield f"| {section}.{name} | {value} |"
    yield ""
    yield f"All of them: `{RECORDS}/config.toml`."


def _made_with(run: RunDir, events: list[Event]) -> Iterator[str]:
    made = json_object(run.made_with)
    yield from ("", "## Made with", "")
    yield f"- Airlock at commit {made.get('commit') or 'unknown'}"
    versions = made.get("versions", {})
    if versions:
        yield "- " + ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"- ranks: {_num_ranks(events)}"


def _num_ranks(events: list[Event]) -> int:
    return max(1, len({event["rank"] for event in events} - {None}))


def _again(run: RunDir, config: RunConfig, num_ranks: int) -> Iterator[str]:
    commit = str(json_object(run.made_with).get("commit") or "").partition("-")[0]
    checkout = f"git checkout {commit}   # in a clone of Airlock\n" if commit else ""
    yield from ("", "## To do it again", "", "Where the run folder is:", "")
    ranks = f"--num-gpus {num_ranks}"
    yield f"```\n{checkout}./start.sh --again {run.run_id} {ranks}\n```"
    yield from ("", "Elsewhere, with this model's folder and the data above:", "")
    held_out = " --set data.eval_path=PATH" if config.data.eval_path else ""
    yield f"```\n./start.sh --again THIS_FOLDER {ranks} --data PATH{held_out}\n```"
