"""Commands as they are typed, carried out in this process: for those that start nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.commands.cli import airlock
from tests.conftest import ROOT

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environ: dict[str, str],
    tmp_path: Path,
) -> Typed:
    """Type `./airlock WORDS`; return the exit code, the output and the errors.

    `env` adds variables; `cwd` is an empty folder by default.
    """

    def typed(
        *words: str, env: dict[str, str] | None = None, cwd: Path = tmp_path
    ) -> tuple[int, str, str]:
        variables = environ | (env or {})
        with monkeypatch.context() as patched:
            patched.chdir(cwd)
            patched.setattr("sys.argv", [str(ROOT / "launch/__main__.py"), *words])
            for name in os.environ.keys() - variables.keys():
                patched.delenv(name)
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                airlock(list(words))
        seen = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, seen.out, seen.err

    return typed
