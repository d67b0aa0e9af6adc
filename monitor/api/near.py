"""Unknown paths: the answer names the nearest path that there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.75  # likeness of two words, 0 to 1


def nearest(path: str, known: Iterable[str]) -> str:
    """Return the path meant by `path`, its own words filled in; "" if none is near.

    `known` are paths of routes: /api/evolution/{dataset}/snapshot/{step}.
    """
    words = [part for part in path.split("/") if part]
    best, best_score = "", 0.0
    for known_path in known:
        parts = [part for part in known_path.split("/") if part]
        if len(parts) == len(words) and known_path != path:
            near, score = _filled_in(words, parts)
            if score > best_score:
                best, best_score = near, score
    return best


def _filled_in(words: list[str], parts: list[str]) -> tuple[str, float]:
    """Fill in a route if each of its fixed words is there or nearly there, wherever it stands."""
    rest, total = list(words), 0.0
    for part in parts:
        if not part.startswith("{"):
            likeness, word = max((_likeness(word, part), word) for word in rest)
            if likeness < _NEAR:
                return "", 0.0
            rest.remove(word)
            total += likeness
    names = iter(rest)
    filled = [next(names) if part.startswith("{") else part for part in parts]
    in_place = sum(a == b for a, b in zip(words, filled, strict=True))
    return "/" + "/".join(filled), (total + in_place) / len(parts)


def _likeness(word: str, part: str) -> float:
    return difflib.SequenceMatcher(None, word.lower()[:80], part).ratio()
