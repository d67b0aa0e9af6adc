"""A few rules for tests of the engine, so that no change of a real rule can affect them."""

from __future__ import annotations

from pathlib import Path

from doctor.logs.diagnosis import diagnose
from doctor.logs.rules import Rule, read_rules
from doctor.logs.verdict import Verdict

TEXT = Path(__file__).with_name("engine_rules.toml").read_text(encoding="utf-8")


def rules(folder: Path, text: str = TEXT) -> list[Rule]:
    """Read the rules in `text` from a file, as always."""
    path = folder / "test.toml"
    path.write_text(text, encoding="utf-8")
    return read_rules(path)


def verdict_on(folder: Path, log: str | bytes, name: str = "train.log") -> Verdict:
    """Return the verdict on a log with that content."""
    path = folder / name
    path.write_bytes(log if isinstance(log, bytes) else log.encode())
    return diagnose([str(path)], rules(folder))


def trace(exception: str, prefix: str = "", file: str = "/home/u/train.py") -> str:
    """Return a traceback in which `exception` was raised below the user's own `file`."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{file}", line 12, in <module>',
        "    main()",
        f'  File "{file}", line 7, in main',
        "    raise OSError('No space left on device')",
        '  File "/usr/lib/python3/dist-packages/torch/x.py", line 99, in call',
        "    return call()",
        "           ^^^^^^",
        exception,
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)
