"""Masking of secrets in what is shown to others: tokens, keys, passwords."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from rundir.paths import RunDir

MASK = "[masked]"
_SHORTEST = 6  # characters of a value that is searched for everywhere: "1" is everywhere

# Excludes TOKENIZERS_PARALLELISM, num_tokens, XAUTHORITY; in texts KeyError, keyword, key=lambda.
_NAME = r"(?:TOKEN(?!IZ|S(?![A-Z]))|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API[_-]?KEY|ACCESS[_-]?KEY)"
_SECRET_NAME = re.compile(rf"{_NAME}|KEY|AUTH(?!OR)", re.IGNORECASE)
_NOT_SECRET = re.compile(r"^(?:|true|false|none|null|yes|no|on|off|-?[\d.]{1,5})$", re.IGNORECASE)

_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}"
    r"|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[a-z]-[\w-]{8,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}"
    r"|wandb_v1_\w{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_BEARER = re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=:-]{6,}", re.IGNORECASE)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@'\"]+@", re.IGNORECASE)
_OF_QUERY = re.compile(
    r"([?&](?:[\w-]*(?:token|key|secret|password|signature|credential)[\w-]*)=)[^&\s'\"]+",
    re.IGNORECASE,
)
# NAME=value, name: value, "name": "value", --name value; the value without its delimiter.
_ASSIGNED = re.compile(
    rf"""(?P<name>{_NAME}[\w-]*)(?P<between>["']?\s*[:=]\s*["']?|\s+)"""
    r"""(?P<value>[^\s"',;&)}\]]{6,})""",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(?:^|\s)--[\w-]*$")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


class Mask:
    """A mask for secrets in texts; secret values in `environs` are masked wherever they occur."""

    def __init__(self, environs: Iterable[Mapping[str, str]]) -> None:
        values = {
            value
            for environ in environs
            for name, value in environ.items()
            if is_secret(name, value)
        }
        forms = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        ordered = sorted(forms, key=len, reverse=True)  # one may be part of another
        self._values = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def variable(self, name: str, value: str) -> str:
        """Return the value of a variable, as it may be shown."""
        return MASK if is_secret(name, value) else self.text(value)

    def text(self, text: str) -> str:
        """Return a text of any kind, as it may be shown."""
        if self._values is not None:
            text = self._values.sub(MASK, text)
        text = _PRIVATE_KEY.sub(MASK, text)
        text = _IN_URL.sub(rf"\1{MASK}@", text)
        text = _OF_QUERY.sub(rf"\1{MASK}", text)
        text = _BEARER.sub(rf"\1\2{MASK}", text)
        text = _KNOWN.sub(MASK, text)
        return _ASSIGNED.sub(_without_value, text)


def mask_of(run: RunDir) -> Mask:
    """Return the mask for texts about `run`: secrets of this process and of the run's ranks."""
    return Mask([os.environ, variables_of(run), options_of(sys.argv)])


def variables_of(run: RunDir) -> dict[str, str]:
    """Return the variables in environment.json; none if it cannot be read."""
    try:
        environment = json.loads(run.environment.read_text(encoding="utf-8", errors="replace"))
        rows = [*environment["variables"], *environment["not_passed_on"]]
        return {str(row["name"]): str(row["value"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable of that name holds a secret, and not merely a setting."""
    return _SECRET_NAME.search(name) is not None and not _NOT_SECRET.match(value)


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of `--name value` and `--name=value`, by name."""
    values = {}
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, is_whole, value = argument.partition("=")
        if name.startswith("--"):
            values[name] = value if is_whole else after
    return values


def _forms(value: str) -> set[str]:
    """Return `value` as it is, as JSON writes it, and as a part of a URL."""
    return {value, json.dumps(value)[1:-1], quote(value, safe="")}


def _without_value(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 80) : match.start()]
    is_value = not match["between"].isspace() or _OPTION.search(before)
    if not is_value or _is_figure(match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{MASK}"


def _is_figure(value: str) -> bool:
    figure = r"[-+]?[\d.,_]+(?:e[-+]?\d+)?|null|None|\[masked|true|false"
    return re.fullmatch(figure, value) is not None
