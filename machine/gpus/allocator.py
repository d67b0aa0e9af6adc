"""PYTORCH_ALLOC_CONF, the settings of torch's CUDA allocator: the user's, checked and extended.

Its older name is PYTORCH_CUDA_ALLOC_CONF. Parts of torch read one name first and parts the other,
so ranks only ever get the new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rundir.errors import UserError

NAME, OLD_NAME = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"

_COMMA = re.compile(r",(?![^\[]*\])")  # but not inside a list [a:1,b:2]


def users_alloc_conf(environ: Mapping[str, str]) -> str:
    """Return the user's setting, under either name, or an empty string.

    Raises UserError if the two names differ, or for a value that torch would not understand.
    """
    new, old = environ.get(NAME, ""), environ.get(OLD_NAME, "")
    if new and old and new != old:
        raise UserError(
            f"{NAME}={new} and {OLD_NAME}={old} are one setting under two names, and differ",
            do=f"unset {OLD_NAME}   # or the other one",
        )
    conf = new or old
    parts = [part.strip() for part in _COMMA.split(conf)] if conf else []
    for part in parts:
        key, _, value = part.partition(":")
        if not key or not value:
            what = "an empty entry" if not part else f"{part!r}, which is not KEY:VALUE"
            good = ",".join(part_text for part_text in parts if all(part_text.partition(":")))
            raise UserError(
                f"{NAME if new else OLD_NAME}={conf} has {what}", do=f"{NAME}={good or EXPANDABLE}"
            )
    return conf


def with_expandable_segments(conf: str) -> str:
    """Return `conf` with expandable segments, unless it sets them or another allocator itself."""
    decided = re.search(r"(^|,)\s*(expandable_segments|backend)\s*:", conf)
    return conf if decided else ",".join(filter(None, (conf, EXPANDABLE)))
