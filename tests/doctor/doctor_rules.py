"""A few rules for tests of the engine, so that no change of a real rule can affect them."""

from __future__ import annotations

from pathlib import Path

from doctor.logs.diagnosis import diagnose
from doctor.logs.rules import Rule, read_rules
from doctor.logs.verdict import Verdict

TEXT = r"""
[[rule]]
cause = "no-disk"
title = "The disk {where} is full"
role = "root"
match = ['No space left on device(: .(?P<where>[\w/]+))?']
beats = ["torn-file"]
confidence = 0.95
why = "Nothing could be written."
fix = "df -h {where}   # awk '{print $1}' shows it"

[[rule]]
cause = "torn-file"
title = "A file is torn"
role = "root"
match = ['unexpected end of file']
confidence = 0.9
why = "It ends too soon."
fix = "fetch it again"

[[rule]]
cause = "gpu-lost"
title = "A GPU is lost"
role = "root"
match = ['^Xid \d+']
needs = ['NVRM: GPU at']
unless = ['simulated']
confidence = 0.9
why = "It does not answer."
fix = "sudo dmesg"

[[rule]]
cause = "killed"
title = "Killed by SIGKILL, sender unknown"
role = "symptom"
match = ['exitcode\s*: -9', '\(exitcode: -9\)', '^Killed$']
confidence = 0.4
why = "Somebody did it."
fix = "sudo dmesg | grep -i oom"

[[rule]]
cause = "peer-lost"
title = "A peer is lost"
role = "cascade"
match = ['Connection closed by peer', 'Watchdog caught collective operation timeout']
confidence = 0.8
why = "Another rank has ended or waits."
fix = "look at the other ranks"

[[rule]]
cause = "harmless"
title = "Harmless"
role = "benign"
match = ['NotAnError: ', 'No space left on device.*will be tried again']

[[rule]]
cause = "at-the-end"
title = "Harmless with what follows"
role = "benign"
match = ['Exception ignored in']
covers_traceback = true
"""


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
