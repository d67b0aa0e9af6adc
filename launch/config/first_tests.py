"""The tests that RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST ask for before a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rundir.errors import UserError

_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTest:
    """A rung of the ladder that an environment variable turns on before a training."""

    variable: str
    title: str
    asks: str
    rung: str

    def is_asked(self, environ: Mapping[str, str], *, by_default: bool = False) -> bool:
        """Return whether the environment asks for it; empty counts as not set.

        Raises UserError for a value that is neither on nor off.
        """
        text = environ.get(self.variable, "").strip().casefold()
        if not text:
            return by_default
        if text in (*_ON, *_OFF):
            return text in _ON
        raise UserError(
            f"{self.variable}={environ[self.variable]!r} is neither on ({', '.join(_ON)}) "
            f"nor off ({', '.join(_OFF)})",
            do=f"{self.variable}=1, or {self.variable}=0",
        )

    def line(self, environ: Mapping[str, str], *, by_default: bool = False) -> str:
        """Return a line that says whether it is run, and what decides that. Raises UserError."""
        is_set = bool(environ.get(self.variable, "").strip())
        if self.is_asked(environ, by_default=by_default):
            why = f"{self.variable}={environ[self.variable].strip()}" if is_set else "no data named"
            return f"{self.title} ({why}): {self.asks}"
        how = f"{self.variable}={environ[self.variable].strip()}" if is_set else "not asked for"
        return f"{self.title}: off ({how}; {self.variable}=1 turns it on)"


FIRST_TESTS = (
    FirstTest(
        variable="RUN_IMPORT_TEST",
        title="import test",
        asks="can all that a rank imports be imported?",
        rung="imports",
    ),
    FirstTest(
        variable="RUN_SINGLE_GPU_TEST",
        title="single-GPU test",
        asks="does one device train a miniature of the model?",
        rung="single_gpu",
    ),
)


def check_first_tests(environ: Mapping[str, str]) -> None:
    """Raise UserError if a variable is set to something that is neither on nor off."""
    for test in FIRST_TESTS:
        test.is_asked(environ)
