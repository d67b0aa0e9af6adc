"""Texts of the data by both tokenizers of a model: by the one used, and as tokenizer.json says.

They differ where the class that serves the model goes its own way (train/files/served.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rundir.units import num_text
from train.data.cache import Tools, columns_of_first
from train.data.formats.known import first_rows
from train.data.formats.source import Source
from train.data.samples import Recipe
from train.data.tokenise import Tokeniser
from train.files.served import file_tokenizer, served

_COMPARED_ROWS = 256
_SHOWN_BEFORE, _SHOWN_TOKENS = 2, 8  # tokens shown before the first difference, and from it on
_SHOWN_CHARS = 40


def compare_tokenizers(
    sources: list[Source], model_path: Path, recipe: Recipe, tools: Tools
) -> list[str]:
    """Return a line to print if texts of the first rows get other ids than by tokenizer.json.

    The texts are those that are tokenised, so the data must be readable. Raises UserError.
    """
    model_class = served(model_path)
    if not model_class.changes_ids:
        return []
    first = first_rows(sources[0], _COMPARED_ROWS)
    tokenizer, template = tools
    both = _Both(tokenizer, file_tokenizer(model_path))
    columns = columns_of_first(first, recipe, sources[0])
    Tokeniser(both, template, recipe, columns).encoded(first)
    if not both.differing:
        return []
    text, used, other = min(both.differing, key=lambda tokens: len(tokens[0]))
    pairs = zip(used.ids, other.ids, strict=False)
    same = next((at for at, (x, y) in enumerate(pairs) if x != y), min(len(used), len(other)))
    begin = max(0, same - _SHOWN_BEFORE)
    pieces = ["|".join(tokens.tokens[begin : same + _SHOWN_TOKENS]) for tokens in (used, other)]
    from_char = used.offsets[begin][0] if begin < len(used) else 0
    line = (
        f"{len(both.differing):,} of {num_text(both.num_texts, 'text')} get other tokens from "
        f"{model_class.class_name}, the model's class in transformers, than from its "
        f"tokenizer.json: {text[from_char:][:_SHOWN_CHARS]!r} becomes {pieces[0]}, not "
        f"{pieces[1]}; the class's are trained on, since the model is served with them "
        "(transformers, vLLM)"
    )
    return [line]


class _Both:
    """A tokenizer that notes the texts to which another would give other ids."""

    def __init__(self, used: Any, other: Any) -> None:
        self._tokenizers = used, other
        self.num_texts = 0
        self.differing: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizers[0], name)

    def encode(self, text: str, **options: Any) -> Any:
        """Return the encoding of a text by the tokenizer that is used."""
        used, other = (tokenizer.encode(text, **options) for tokenizer in self._tokenizers)
        self.num_texts += 1
        if used.ids != other.ids:
            self.differing.append((text, used, other))
        return used

    def encode_batch(self, texts: list[str], **options: Any) -> list[Any]:
        """Return the encodings of texts; one by one, as threads would be lost in later forks."""
        return [self.encode(text, **options) for text in texts]

    encode_batch_fast = encode_batch
