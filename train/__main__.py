"""`python -m train PROFILE OPTIONS`: the same as `./airlock run --plain PROFILE OPTIONS`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    airlock = "./airlock" if Path.cwd() == root else str(root / "airlock")
    os.execv(airlock, [airlock, "run", "--plain", *sys.argv[1:]])  # noqa: S606
