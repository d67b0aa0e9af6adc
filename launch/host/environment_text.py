"""Text form of the ranks' environment, for the console and the dry run."""

from __future__ import annotations

from launch.host.leftover_variables import RULES, names_in
from launch.host.rank_environment import RankEnvironment

_WIDTH = 40  # of NAME=VALUE; a longer one has its reason on the next line


def environment_lines(environment: RankEnvironment) -> list[str]:
    """Return lines with each variable's value, source and reason."""
    return [
        line
        for one in environment.variables
        for line in _columns(f"{one.name}={_printable(one.value)}", f"{one.source}: {one.reason}")
    ]


def _columns(left: str, right: str) -> list[str]:
    if len(left) > _WIDTH:
        return [f"  {left}", f"  {'':{_WIDTH}}  {right}"]
    return [f"  {left:{_WIDTH}}  {right}"]


def left_out_lines(environment: RankEnvironment, keep_env: str) -> list[str]:
    """Return a line for each reason why variables are not passed on, and one on keeping them."""
    lines, can_keep = [], []
    for rule in RULES:
        found = [one for one in environment.left_out if rule.covers(one.name)]
        if not found:
            continue
        shown = " ".join(f"{one.name}={_printable(one.value)}" for one in found)
        lines.append(f"not passed on: {shown}: {rule.why}")
        if rule.can_keep:
            can_keep += [one.name for one in found]
    if can_keep:
        names = ",".join([*names_in(keep_env), *can_keep])
        lines.append(f"  → to keep what is meant: --set launch.keep_env={names}")
    return lines


def _printable(value: str) -> str:
    """Return the value, escaped if it has characters that could move a terminal's cursor."""
    return value if value.isprintable() else repr(value)
