"""`python -m tests.launch.clean.cleaning AT`: an `airlock clean --yes` that kills itself.

Before its AT-th change of a file; 0: never. Prints how many there were, if it comes to its end.
"""

from __future__ import annotations

import os
import signal
import sys

from click.testing import CliRunner

from launch.commands.clean import clean

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def main() -> None:
    """Clean, and count."""
    at, num = int(sys.argv[1]), 0
    sys.dont_write_bytecode = True  # a .pyc is renamed into its place: no change of clean's

    def look(event: str, _args: tuple[object, ...]) -> None:
        nonlocal num
        if event in _CHANGES:
            num += 1
            if num == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    CliRunner().invoke(clean, ["--older-than", "0s", "--yes"])
    sys.stdout.write(f"{num}\n")


if __name__ == "__main__":
    main()
