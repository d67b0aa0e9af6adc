"""The environment of the ranks as people read it: on the console and in a dry run."""

from __future__ import annotations

from launch.host.leftover_variables import RULES, names_in
from launch.host.rank_environment import RankEnvironment

_WIDTH = 40  # of NAME=VALUE; what is longer has its reason on the next line


def environment_lines(environment: RankEnvironment) -> list[str]:
    """Each variable with its value, source and reason."""
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
    """What is not passed on and why, a line for each reason; and what to type to keep it."""
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
    """The value, without what would move the cursor of a terminal."""
    return value if value.isprintable() else repr(value)
