"""A `Models.consider` that kills itself at one of its steps.

`python -m tests.inbox.models.considering AT FOLDER RUN JOB NAME COMMAND…`: before its AT-th change
of a file or start of a process; 0: never. Prints how many there were, if it comes to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from inbox.models.held_out_scores import Scorer
from inbox.models.models import Models

_CHANGES = ("os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main() -> None:
    """Consider a job, and count."""
    at, folder, run, job_id, name, *command = sys.argv[1:]
    num = 0

    def look(event: str, args: tuple[Any, ...]) -> None:
        nonlocal num
        is_write = event == "open" and isinstance(args[2], int) and bool(args[2] & _WRITES)
        if event in _CHANGES or event == "subprocess.Popen" or is_write:
            num += 1
            if num == int(at):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    scorer = Scorer(command, os.environ, lambda: False)
    models = Models(Path(folder), forgetting=0.1, scorer=scorer)
    models.consider(job_id=job_id, name=name, content_hash="0123", run=Path(run))
    sys.stdout.write(f"{num}\n")


if __name__ == "__main__":
    main()
