"""The rungs of the ladder, one file each: `python -m diagnostics.NAME`, or `airlock check`.

Each runs in its own process; probes/ holds the code that they share.
"""

import sys

if sys.argv[:1] == ["-m"]:  # typed so, perhaps outside an environment
    from setup.typed_module import leave_unless_complete

    leave_unless_complete()
