"""Text form of the ranks' environment, for the console and the dry run."""

from __future__ import annotations

from collections.abc import Sequence

from launch.config.leftover_variables import RULES, Leftover, names_in
from launch.config.rank_environment import RankEnvironment

_WIDTH = 40  # of NAME=VALUE; a longer one has its reason on the next line


def environment_lines(environment: RankEnvironment) -> list[str]:
    """Return lines with each variable's value, source and reason."""
    return [
        line
        for variable in environment.variables
        for line in _columns(
            f"{variable.name}={_printable(variable.value)}", f"{variable.source}: {variable.reason}"
        )
    ]


def _columns(left: str, right: str) -> list[str]:
    if len(left) > _WIDTH:
        return [f"  {left}", f"  {'':{_WIDTH}}  {right}"]
    return [f"  {left:{_WIDTH}}  {right}"]


def left_out_lines(environment: RankEnvironment, keep_env: str) -> list[str]:
    """Return a line for each reason why variables do harm, and one on keeping those left out."""
    lines, can_keep = [], []
    for rule in RULES:
        if slow := [leftover for leftover in environment.slow if rule.covers(leftover.name)]:
            lines.append(f"warning: passed on: {_shown(slow)}: {rule.why}")
        if leftovers := [
            leftover for leftover in environment.left_out if rule.covers(leftover.name)
        ]:
            lines.append(f"not passed on: {_shown(leftovers)}: {rule.why}")
            can_keep += [leftover.name for leftover in leftovers if rule.can_keep]
    if can_keep:
        names = ",".join([*names_in(keep_env), *can_keep])
        lines.append(f"  → to keep what is meant: --set launch.keep_env={names}")
    return lines


def _shown(leftovers: Sequence[Leftover]) -> str:
    return " ".join(f"{leftover.name}={_printable(leftover.value)}" for leftover in leftovers)


def _printable(value: str) -> str:
    """Return the value, escaped if it has characters that could move a terminal's cursor."""
    return value if value.isprintable() else repr(value)
