"""The finding of a check: the same for the diagnostics, for preflight, and in their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Figure = float | int | str | bool | None | list[float] | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: passed or not, in words and in figures (units in the keys).

    `do` is what to type next. A `warning` does not make the check fail.
    """

    check: str
    ok: bool
    text: str
    do: str = ""
    warning: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)

    @property
    def level(self) -> Literal["ok", "warning", "error"]:
        """The severity: an error ends what was to be done, a warning does not."""
        if not self.ok:
            return "error"
        return "warning" if self.warning else "ok"
