"""The samples of a step by their rows and files, for people, and which of them have a high loss."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from ranks.group import Ranks
from rundir.config import RunConfig
from rundir.data_paths import data_paths
from rundir.errors import UserError
from rundir.paths import RunDir
from train.batches.batch import loss_of
from train.batches.feed import Feed
from train.data.dataset import SampleFile
from train.data.sources import find_sources
from train.model.build import inference
from train.stream.streamed_samples import StreamedSamples

Row = dict[str, Any]  # file, row, and the mean loss of its labels (None: not a number)


def rows_of_step(
    step: int,
    *,
    feed: Feed,
    config: RunConfig,
    run: RunDir,
    ranks: Ranks,
    loss: nn.Module,
) -> list[Row]:
    """Return the rows of `step` (from 0) on rank 0, that with the highest loss first.

    Called by all ranks together; the losses are those of the weights as they are now. Streamed rows
    come without, in the order of the step.
    """
    samples = feed.samples
    if isinstance(samples, StreamedSamples):
        origins = samples.origins(step) if ranks.is_first else []
        return [{"file": file, "row": row, "loss": None} for file, row in origins]
    assert isinstance(samples, SampleFile)
    own = [index for batch in feed.shares(step)[ranks.rank] for row in batch for index in row]
    with inference(loss):
        measured = [(index, _mean_loss(index, samples, ranks, loss)) for index in own]
    together = [row_loss for some in ranks.gather(measured) for row_loss in some]
    if not ranks.is_first:
        return []
    together.sort(
        key=lambda row_loss: (-(math.inf if math.isnan(row_loss[1]) else row_loss[1]), row_loss[0])
    )
    files = _file_names(config, run)
    return [_row(samples, index, value, files) for index, value in together]


def _mean_loss(index: int, samples: SampleFile, ranks: Ranks, loss: nn.Module) -> float:
    ranks.pulse.tick("eval")
    loss_sum, num_labels = loss_of(loss, [samples[index]], ranks.device)
    return loss_sum / max(1, num_labels)


def _file_names(config: RunConfig, run: RunDir) -> list[list[str]]:
    """Return the files that each data path was made of, as far as they are still there."""
    names = []
    for number, data_path in enumerate(data_paths(config.data.path)):
        path = run.data_of_hub("path", number) if data_path.is_of_hub else Path(data_path.path)
        names.append([str(path)])
        with suppress(UserError):
            names[-1] = [str(source.path) for source in find_sources(path)]
    return names


def _row(samples: SampleFile, index: int, loss: float, files: list[list[str]]) -> Row:
    part, source, number = samples.origin(index)
    names = files[part] if part < len(files) else []
    is_known = source is not None and source < len(names)
    return {
        "file": names[source or 0] if is_known else "",
        "row": index + 1 if number is None else number,
        "loss": loss if math.isfinite(loss) else None,
    }


def row_texts(rows: list[Row], most: int) -> str:
    """Return the first rows as text: FILE:ROW (loss)."""
    shown = [
        f"{row['file'] or 'row '}{':' if row['file'] else ''}{row['row']}"
        + ("" if row["loss"] is None else f" ({row['loss']:.2f})")
        for row in rows[:most]
    ]
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(shown) + more
