"""`./airlock evaluate`: its options, and what is asked with them."""

from __future__ import annotations

import os
from typing import Any

import click
from rich.console import Console

from launch.config.options import options
from machine.processes.output import Output, end_with
from rundir.errors import UserError
from rundir.exit_codes import ExitCode


@click.command()
@click.argument("model", required=False, metavar="[RUN|FOLDER|OWNER/NAME]")
@click.argument("data", nargs=-1, metavar="[NAME=]DATA...")
@click.option("--live", metavar="RUN", help="A run that trains evaluates after its next step.")
@click.option("--num-gpus", type=int, help="Ranks, each on a device of its own; 1 by default.")
@options("set", "json")
@click.option(
    "--max-samples", type=click.IntRange(min=0), default=0, help="Rows to take of each set; 0: all."
)
@click.option("--examples", metavar="FILE", help="Write each example to this JSONL file.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds to wait for a live run's answer; what was asked for stands all the same.",
)
@click.option(
    "--no-generate", is_flag=True, help="Leave out answers and exact match: the loss alone."
)
def evaluate(
    model: str | None, data: tuple[str, ...], live: str | None, *, timeout_s: float, **options: Any
) -> None:
    """Measure a model's loss, perplexity and exact matches on each DATA, without training.

    The model of a run (exported, or its best checkpoint), of a folder (also a checkpoint, or
    adapters), or of the Hub. DATA is a file, a folder or hf:OWNER/NAME. On one device unless
    --num-gpus says more. With --live, on the held-out data of the run, which then goes on.
    """

    def start(console: Console, output: Output) -> ExitCode:
        if live is not None:
            if model or data:
                raise UserError(
                    "--live takes the run's own held-out data",
                    do=f"./airlock evaluate --live {live}",
                )
            from launch.live import control_run

            control_run.once(live, "evaluate", "", console, timeout_s=timeout_s)
            return ExitCode.DONE
        if model is None or not data:
            raise UserError(
                "a model and data are needed",
                do=f"./airlock evaluate {model or 'RUN'} [NAME=]DATA..., or --live RUN",
            )
        from launch.commands import evaluate_model

        asked = evaluate_model.Asked(model=model, data=data, **options)
        return evaluate_model.evaluate(asked, console, output, os.environ)

    end_with(start)
