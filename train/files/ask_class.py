"""Asks transformers how its class for a model tokenises: `python -P -m train.files.ask_class`.

FOLDER [with-torch]; prints one JSON object, the fields of `Served` (train/files/served.py). A
tokenizer needs no torch, whose import takes longer than all else here.
"""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

WITH_TORCH = "with-torch"
_NUM_MARKS = 100  # added tokens that are tried
_TEXTS = (  # what classes are known to treat in ways of their own, in ordinary texts
    "a",
    "Hello, world! It's 2024-11-07, and we'll pay $1,234,567.89 (or 50%).",
    "  two spaces before, one after ",
    "\n\nlines\r\n\tand tabs\n   indented = 0x1F + 42\n",
    "größe, naïve, Ångström, e\u0301te\u0301, ﬁne",
    "Привет, мир 123; 你好 世界１２３; こんにちは; नमस्ते ४५६; مرحبا ٧٨٩; 🙂👍🏽",
    "CamelCase snake_case www.example.com/a?b=1&c=2 <b>bold</b> a@b.c",
    "don't DON'T I'M they'Ve x's",
    "...!!! --- ___ ==> {[()]} \\ / | ~ ^ `code`",
    "▁low ▁▁lines",
)


def ask(folder: Path) -> dict[str, Any]:
    """Return the fields of `Served`: of the class that transformers picks for a model folder.

    Runs no code of the folder's, and needs no network.
    """
    try:
        from transformers import AutoTokenizer

        path = str(folder.absolute())
        load: Any = AutoTokenizer.from_pretrained
        served = load(path, trust_remote_code=False, local_files_only=True)
        return _compared(served, folder)
    except Exception as error:  # noqa: BLE001 - whatever a library raises: it cannot be compared
        first_line = (str(error).strip().splitlines() or [""])[0]
        return {"problem": f"{type(error).__name__}: {first_line}"}


def _compared(served: Any, folder: Path) -> dict[str, Any]:
    """Return how a tokenizer of transformers compares with the tokenizer.json in `folder`."""
    from tokenizers import Tokenizer

    own = plain(Tokenizer.from_file(str(folder / "tokenizer.json")))
    marks = [token.content for _, token in sorted(own.get_added_tokens_decoder().items())]
    texts = [*_TEXTS, *(f"a {mark} b{mark}1\n{mark}" for mark in marks[:_NUM_MARKS])]
    ids = [list(served.encode(text, add_special_tokens=False)) for text in texts]
    report: dict[str, Any] = {"class_name": type(served).__name__}
    backend = getattr(served, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer) or _ids(plain(backend), texts) != ids:
        for text, theirs, ours in zip(texts, ids, _ids(own, texts), strict=True):
            if theirs != ours:
                pieces = served.convert_ids_to_tokens(theirs)
                report["differs"] = [text, [str(piece) for piece in pieces], _tokens(own, text)]
                break
        return report
    made, of_file = _canonical(backend), _canonical(own)
    if made != of_file:
        report["backend"] = backend.to_str()
        report["splits_marks"] = backend.encode_special_tokens
    decisive = _decisive(made)
    report["changes_ids"] = decisive != _decisive(of_file)
    report["digest"] = sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return report


def plain(tokenizer: Any) -> Any:
    """Return a tokenizer without the settings of its last user: it would truncate and pad."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def _tokens(tokenizer: Any, text: str) -> list[str]:
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return tokens


def _canonical(tokenizer: Any) -> dict[str, Any]:
    """Return all that a tokenizer does, without what makes no difference."""
    made = json.loads(tokenizer.to_str())
    words = [made["model"].pop(name, None) for name in ("vocab", "merges")]
    if (made["decoder"] or {}).get("type") == "ByteLevel":
        made["decoder"] = "ByteLevel"  # its settings are those of an encoder
    return _without_empty(made) | {
        "words": sha256(json.dumps(words).encode()).hexdigest(),
        "post_processor": tokenizer.encode("a").ids,  # all that it does to ids
        "splits_marks": tokenizer.encode_special_tokens,
    }


def _decisive(canonical: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the ids of texts: neither the way back nor what is left out there."""
    marks = [token | {"special": None} for token in canonical["added_tokens"]]
    return canonical | {"decoder": None, "added_tokens": marks}


def _without_empty(value: Any) -> Any:
    """Return JSON without empty settings and those of offsets: files may leave them out."""
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_empty(item)
        for name, item in value.items()
        if name != "trim_offsets" and item is not None and item is not False and item != ""
    }


def main() -> None:
    """Print the answer, and nothing else: what libraries print goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    if WITH_TORCH not in sys.argv[2:]:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not installed
    with os.fdopen(answer, "w", encoding="ascii") as file:
        json.dump(ask(Path(sys.argv[1])), file)


if __name__ == "__main__":
    main()
