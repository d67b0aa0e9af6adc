"""Unknown paths: the answer names the nearest path that there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.75  # likeness of two words, 0 to 1


def nearest(path: str, known: Iterable[str]) -> str:
    """Return the path meant by `path`, its own words filled in; "" if none is near.

    `known` are paths of routes: /api/evolution/{dataset}/snapshot/{step}.
    """
    asked = [part for part in path.split("/") if part]
    best, best_score = "", 0.0
    for known_path in known:
        parts = [part for part in known_path.split("/") if part]
        if len(parts) != len(asked) or known_path == path:
            continue
        near, score = _in_other_order(asked, parts)
        if not near:
            near, score = _misspelt(asked, parts)
        if near and score > best_score:
            best, best_score = near, score
    return best


def _in_other_order(asked: list[str], parts: list[str]) -> tuple[str, float]:
    """Fill in the route if its fixed words are all there, wherever they stand."""
    rest = list(asked)
    for part in parts:
        if not _is_name(part):
            if part not in rest:
                return "", 0.0
            rest.remove(part)
    kept = iter(rest)
    filled = [next(kept) if _is_name(part) else part for part in parts]
    in_place = sum(a == b for a, b in zip(asked, filled, strict=True))
    return "/" + "/".join(filled), 1.0 + in_place / len(parts)


def _misspelt(asked: list[str], parts: list[str]) -> tuple[str, float]:
    """Fill in the route if each of its fixed words is like the one that stands there."""
    filled, total, num = [], 0.0, 0
    for word, part in zip(asked, parts, strict=True):
        if _is_name(part):
            filled.append(word)
            continue
        likeness = difflib.SequenceMatcher(None, word.lower()[:80], part).ratio()
        if likeness < _NEAR:
            return "", 0.0
        filled.append(part)
        total, num = total + likeness, num + 1
    return "/" + "/".join(filled), total / max(1, num)


def _is_name(part: str) -> bool:
    return part.startswith("{")
