"""Harmful leftover variables: set for debugging, by an old script or by another launcher.

A run reports those it finds. It does not pass them on, unless `launch.keep_env` names them; but
those that a machine may need, as its GPUs cannot reach each other without, are passed on with a
warning. The rules are in leftover_variables.toml.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rundir.errors import UserError

_OFF = ("0", "n", "no", "f", "false", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverRule:
    """A rule: variable names (`*` matches any ending), their harmful values, and the harm.

    `values` says in words which do harm; those beyond any, on and off are in the next four fields,
    in lower case.
    """

    names: list[str]
    values: str
    among: list[str] | None = None
    not_among: list[str] | None = None
    below: int = 0  # of whole numbers; to NCCL a negative one means "not set"
    multiple_of: int = 1  # what whole numbers have to be
    why: str
    can_keep: bool = True
    may_be_needed: bool = False  # passed on, with a warning

    def covers(self, name: str) -> bool:
        """Return whether the rule applies to the variable `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def is_harmful(self, value: str) -> bool:
        """Return whether a variable that the rule covers does harm with that value."""
        text = value.strip().casefold()
        if self.values == "any":
            return True
        if self.values in ("on", "off"):
            return bool(text) and (self.values == "off") is (text in _OFF)
        if self.among is not None:
            return text in self.among
        if self.not_among is not None:
            return text not in self.not_among
        return text.isdecimal() and (int(text) < self.below or int(text) % self.multiple_of != 0)


_FILE = Path(__file__).with_suffix(".toml")
RULES = [LeftoverRule(**row) for row in tomllib.loads(_FILE.read_text(encoding="utf-8"))["rule"]]


@dataclass(frozen=True, slots=True)
class Leftover:
    """A variable of the user's environment that does harm, and why."""

    name: str
    value: str
    reason: str


def find_leftovers(environ: Mapping[str, str], keep_env: str) -> list[Leftover]:
    """Return the variables of `environ` not passed on, in table order, without those kept."""
    return _harmful(environ, keep_env, may_be_needed=False)


def find_slow_settings(environ: Mapping[str, str], keep_env: str) -> list[Leftover]:
    """Return the variables of `environ` passed on with a warning; those kept need none."""
    return _harmful(environ, keep_env, may_be_needed=True)


def _harmful(environ: Mapping[str, str], keep_env: str, *, may_be_needed: bool) -> list[Leftover]:
    keep = names_in(keep_env)
    return [
        Leftover(name, value, rule.why)
        for rule in RULES
        if rule.may_be_needed is may_be_needed
        for name, value in sorted(environ.items())
        if rule.covers(name) and name not in keep and rule.is_harmful(value)
    ]


def names_in(keep_env: str) -> list[str]:
    """Return the variable names in `launch.keep_env`, which are separated by commas."""
    return [name.strip() for name in keep_env.split(",") if name.strip()]


def check_keep_env(keep_env: str, environ: Iterable[str]) -> None:
    """Raise UserError for a mistyped name, or one that cannot be kept.

    A name that is not set is valid if the table has it: a profile may serve several machines.
    """
    known = [name for rule in RULES if rule.can_keep for name in rule.names]
    for name in names_in(keep_env):
        for rule in RULES:
            if rule.covers(name) and not rule.can_keep:
                raise UserError(
                    f"launch.keep_env names {name}, which cannot be kept: {rule.why}",
                    do=f"take {name} out of launch.keep_env",
                )
        if name not in known and name not in environ:
            near = difflib.get_close_matches(name, {*known, *environ}, n=1)
            raise UserError(
                f"launch.keep_env names {name}, which is not set",
                do=f"perhaps {near[0]}?" if near else f"set it, or take {name} out",
            )
