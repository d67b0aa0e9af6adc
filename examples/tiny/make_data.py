"""Make the data set that `./start.sh tiny` trains on: three small tasks a tiny model can learn.

    python examples/tiny/make_data.py            # rewrites train.jsonl and heldout.jsonl beside it

The same seed gives the same bytes. No prompt of the held-out file occurs in the training file, not
even in another spelling: prompts are compared by `normalise`, and a sum is held out together with
its mirror image (2 + 5 and 5 + 2), so that exact match measures whether the rule was learnt.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SEED = 20261120
NUM_TRAIN_WORDS, NUM_HELDOUT_WORDS = 3000, 90
NUM_HELDOUT_SUMS = 5  # unordered pairs, of the 55 that single digits make

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"

Row = dict[str, str]


def normalise(prompt: str) -> str:
    """Normalise a prompt for comparison: case, spacing and end punctuation are ignored."""
    return " ".join(prompt.casefold().rstrip(" ?.!").split())


def _word(rng: random.Random) -> str:
    """Return a pronounceable word of 3 to 6 letters, alternating consonants and vowels."""
    letters = [rng.choice(CONSONANTS if i % 2 == 0 else VOWELS) for i in range(rng.randint(3, 6))]
    return "".join(letters)


def _distinct_words(rng: random.Random, count: int) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < count:
        words[_word(rng)] = None
    return list(words)


def _word_rows(word: str) -> list[Row]:
    return [
        {"prompt": f"upper {word}", "response": word.upper()},
        {"prompt": f"last {word}", "response": word[-1]},
    ]


def _sum_rows(pair: tuple[int, int]) -> list[Row]:
    orders = {pair, pair[::-1]}
    return [{"prompt": f"{a} + {b}", "response": str(a + b)} for a, b in sorted(orders)]


def make(seed: int = SEED) -> tuple[list[Row], list[Row]]:
    """Return (training rows, held-out rows), each {"prompt", "response"}; no prompt is in both."""
    rng = random.Random(seed)
    words = _distinct_words(rng, NUM_TRAIN_WORDS + NUM_HELDOUT_WORDS)
    pairs = [(a, b) for a in range(10) for b in range(a, 10)]
    rng.shuffle(pairs)
    heldout = [row for word in words[:NUM_HELDOUT_WORDS] for row in _word_rows(word)]
    heldout += [row for pair in pairs[:NUM_HELDOUT_SUMS] for row in _sum_rows(pair)]
    train = [row for word in words[NUM_HELDOUT_WORDS:] for row in _word_rows(word)]
    # There are few sums and many words: each sum is repeated so that it is seen about as often.
    sums = [row for pair in pairs[NUM_HELDOUT_SUMS:] for row in _sum_rows(pair)]
    train += sums * 24
    rng.shuffle(train)
    rng.shuffle(heldout)
    return train, heldout


def write(folder: Path) -> None:
    """Write train.jsonl and heldout.jsonl into `folder`."""
    for name, rows in zip(("train", "heldout"), make(), strict=True):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
