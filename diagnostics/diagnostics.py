"""What `import diagnostics` finds where a rung is typed as a file: `python diagnostics/imports.py`.

Python then looks for modules in this folder and not in the clone's root. The root takes its place,
and the package that of this module, so that the rung runs as `python -m diagnostics.NAME` does.
"""

import sys
from pathlib import Path

if __name__ == "diagnostics":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from setup.typed_module import leave_if_incomplete

    leave_if_incomplete(f"diagnostics.{Path(sys.argv[0]).stem}")
    del sys.modules["diagnostics"]
    import diagnostics  # noqa: F401 - the package, in place of this module
