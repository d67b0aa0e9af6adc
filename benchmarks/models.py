"""Every causal architecture that the installed transformers knows: right, or refused with a reason.

`python -m benchmarks.models [--all] [--only KIND,...] [--write] [--json]` makes each of them small
(benchmarks/architectures/), in float32 and bfloat16, with full and LoRA training, and compares
Airlock's results with those of the model's own class. Without --all it checks a dozen, of every
kind. --write generates docs/architectures.md from the results.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils import logging

from benchmarks.architectures.model_checks import Case, check
from benchmarks.architectures.small_models import causal_architectures
from benchmarks.report import machine

DOCS = Path(__file__).resolve().parent.parent / "docs/architectures.md"
# One of each kind: plain, scaled or capped logits, experts, latent attention, a state, a
# convolution, no positions, an encoder, vision beside text.
QUICK = "llama qwen3 gpt2 gemma2 granite qwen3_moe gpt_oss deepseek_v3 mamba2 bloom bert gemma3"
_LEAST = 140  # of all architectures, those that can be made small
_NOTES_WIDTH, _WIDTH = 60, 160
_TASKS_PER_PROCESS = 12  # each process keeps what transformers has imported


def main() -> None:
    """Check, print, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models")
    parser.add_argument("--all", action="store_true", help="every architecture, not a dozen")
    parser.add_argument("--only", default="", help="these, separated by commas")
    parser.add_argument("--write", action="store_true", help="make docs/architectures.md")
    parser.add_argument("--quick", action="store_true", help="a dozen, as without --all")
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    options = parser.parse_args()
    kinds = causal_architectures() if options.all else QUICK.split()
    if options.only:
        kinds = options.only.split(",")
    results = dict(sorted(_checked(kinds)))
    made = {kind: cases for kind, (why, cases) in results.items() if not why}
    wrong = [kind for kind, cases in made.items() if _verdict(cases)[0] == "wrong"]
    Console(width=_WIDTH).print(_table(results))
    if options.write:
        DOCS.write_text(_page(results), encoding="utf-8")
    holds = not wrong and (not options.all or len(made) >= _LEAST)
    if options.json:
        cases = {kind: [asdict(case) for case in of_kind] for kind, of_kind in made.items()}
        counted = {"num_made": len(made), "num_wrong": len(wrong), "num_known": len(kinds)}
        print(  # noqa: T201
            json.dumps({"machine": machine(), "cases": cases, "ratios": counted, "holds": holds})
        )


def _checked(kinds: list[str]) -> Iterator[tuple[str, tuple[str, list[Case]]]]:
    num = min(len(kinds), len(os.sched_getaffinity(0)))
    # Not concurrent.futures: with a limit on tasks it can wait for ever on 3.11 (cpython#115634).
    with get_context("spawn").Pool(num, maxtasksperchild=_TASKS_PER_PROCESS) as pool:
        found = pool.imap_unordered(_check, kinds)
        yield from track(found, "models", len(kinds), console=Console(stderr=True))


def _check(kind: str) -> tuple[str, tuple[str, list[Case]]]:
    """Check one architecture, in a process of the pool."""
    warnings.simplefilter("ignore")
    silence: Any = logging
    silence.set_verbosity_error()
    silence.disable_progress_bar()
    torch.set_num_threads(1)
    return kind, check(kind)


def _verdict(cases: list[Case]) -> tuple[str, str]:
    """Return (right, refused, or wrong; why) for all cases together."""
    for verdict in ("wrong", "refused"):
        found = [case for case in cases if case.verdict == verdict]
        if found:
            where = "" if len(found) == len(cases) else _ways(found)
            return verdict, f"{where}{found[0].reason}"
    return "right", ""


def _ways(cases: list[Case]) -> str:
    return ", ".join(f"{case.method} in {case.dtype}" for case in cases) + ": "


def _rows(results: dict[str, tuple[str, list[Case]]]) -> Iterator[list[str]]:
    for kind, (why, cases) in results.items():
        if why:
            continue
        verdict, reason = _verdict(cases)
        trained = [case for case in cases if case.verdict != "refused"]
        if not trained:
            yield [kind, verdict, "", "", "", "", "", reason]
            continue
        shares = [case.lora_share for case in trained if case.lora_share is not None]
        notes = [reason] if reason else []
        notes += [case.why_not for case in trained if case.why_not][:1]
        yield [
            kind,
            verdict,
            "yes" if all(case.packs for case in trained) else "no",
            trained[0].head,
            trained[0].attention,
            f"{min(shares):.1%}" if shares else "",
            "yes" if not any(case.plan for case in trained) else "no",
            "; ".join(notes),
        ]


_COLUMNS = ("model_type", "", "rows shared", "head", "attention", "LoRA on", "plan", "notes")


def _table(results: dict[str, tuple[str, list[Case]]]) -> Table:
    table = Table(*_COLUMNS)
    for *row, notes in _rows(results):
        table.add_row(*row, notes[:_NOTES_WIDTH])
    return table


_INTRODUCTION = """# Architectures

Made by `python -m benchmarks.models --all --write`; do not edit. Each causal architecture of
transformers {version} is made small, with random weights, and what Airlock computes of it is
compared with the model's own class: in float32 the loss of samples that share rows with that of
each alone (1e-6 at most), and the gradients of all that is trained (a cosine of 0.9999 at least);
in bfloat16 the loss of the same rows (0.2 % at most). Samples in one row change each other by
nothing, and what is loaded from the exported files computes as what was exported.

Of {num_known}, {num_made} can be made small by a general rule: {right} are right, {refused} are
refused before the first step, {wrong} are wrong.

- *rows shared*: several samples can stand in one row (`data.packing`), if need be with help for
  the layers that the notes name; else samples of like length share batches.
- *head*: `matrix`, logits are made and used in chunks; `own`, the same by the model's own code, as
  it scales or caps them; `whole`, all at once.
- *LoRA on*: share of the weights between embedding and head that get adapters.
- *plan*: whether `airlock plan` can tell the memory it takes.
"""


def _page(results: dict[str, tuple[str, list[Case]]]) -> str:
    import transformers

    rows = list(_rows(results))
    counts = {
        verdict: sum(row[1] == verdict for row in rows) for verdict in ("right", "refused", "wrong")
    }
    small = {kind: why for kind, (why, _) in results.items() if why}
    said = _INTRODUCTION.format(
        version=transformers.__version__, num_known=len(results), num_made=len(rows), **counts
    )
    lines = [
        said,
        "| " + " | ".join(name or "verdict" for name in _COLUMNS) + " |",
        "|" + "---|" * len(_COLUMNS),
        *("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows),
        "",
        "Not made small, and so not looked at: "
        + "; ".join(f"{kind} ({why[:80]})" for kind, why in small.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
