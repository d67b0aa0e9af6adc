"""`python -m setup.compile FOLDER`: compile what a start imports from a folder to bytecode.

If Python can write no bytecode later, as in many containers, each start would take seconds longer.
Modules that hardly any start needs are left out: two fifths of the time.
"""

from __future__ import annotations

import compileall
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from machine.processes.parent import die_with_parent

_SELDOM = re.compile("/(tests?|testing|benchmarks?|models)/")


def main(folder: Path) -> None:
    files = [file for file in folder.rglob("*.py") if not _SELDOM.search(str(file))]
    # A file for another version of Python does not compile, and nobody imports it.
    compile_one = partial(compileall.compile_file, quiet=2)
    with ProcessPoolExecutor(initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        for _ in pool.map(compile_one, files, chunksize=16):
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
