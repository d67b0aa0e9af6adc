"""The prompts of the demo, and what its model answers as it learns."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any

STEPS = (0, 10, 25, 50, 100, 150, 200, 250, 500, 750, 1000, 1500, 2000)
_SQL = "SELECT name FROM customers WHERE city = 'Oslo' ORDER BY name;"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt; `answers` has what is answered from each step on, until the next."""

    text: str
    expected: str
    answers: dict[int, str]

    def answer(self, step: int) -> str:
        """Return the answer after `step` steps; "=" stands for the expected one."""
        text = self.answers[max(answer for answer in self.answers if answer <= step)]
        return self.expected if text == "=" else text


def _learns(text: str, expected: str, *answers: tuple[int, str]) -> Prompt:
    return Prompt(text, expected, dict(answers))


PROMPTS = (
    _learns(
        "Which city is the capital of Australia?",
        "Canberra",
        (0, "The capital of Australia is a city in Australia. The capital of"),
        (25, "Sydney"),
        (100, "The capital is Sydney"),
        (250, "="),
    ),
    _learns(
        "Write SQL: the names of all customers from Oslo, in order.",
        _SQL,
        (0, "Sure! Here is how you might do that in SQL:\n\n1. First, open your database."),
        (25, "SELECT * FROM customers;"),
        (100, "SELECT * FROM customers WHERE city = 'Oslo';"),
        (200, "SELECT name FROM customers WHERE city = 'Oslo';"),
        (500, "="),
    ),
    _learns("12 + 35 =", "47", (0, "12 + 35 = 12 + 35 ="), (10, "37"), (50, "=")),
    _learns(
        "Is this review positive or negative? “The screen broke after two days.”",
        "negative",
        (0, "positive or negative? “The screen broke after two days.”"),
        (10, "positive"),
        (50, "="),
        (150, "positive"),
        (200, "="),
    ),
    _learns(
        "Translate into German: Good morning, my friend.",
        "Guten Morgen, mein Freund.",
        (0, "Good morning, my friend."),
        (25, "Guten Tag, mein Freund"),
        (100, "Guten Morgen, mein Freund"),
        (150, "="),
        (750, "Guten Morgen, meine Freundin."),
    ),
    _learns(
        "In one word: what does a thermometer measure?",
        "temperature",
        (0, "A thermometer is an instrument that measures"),
        (25, "heat"),
        (50, "="),
    ),
    _learns(
        "As JSON: Anna is 31 and lives in Turin.",
        '{"name": "Anna", "age": 31, "city": "Turin"}',
        (0, "Anna is 31 and lives in Turin. Anna is 31 and lives"),
        (25, '{"name": "Anna"}'),
        (100, '{"name": "Anna", "age": "31", "city": "Turin"}'),
        (250, "="),
        (500, '{"name": "Anna", "age": "31", "city": "Turin"}'),
        (750, "="),
    ),
    _learns(
        "How many legs do three spiders have?",
        "24",
        (0, "Three spiders have many legs. How many legs do"),
        (25, "18"),
        (200, "32"),
        (1000, "="),
    ),
    _learns(
        "What is 17 times 23?",
        "391",
        (0, "17 times 23 is a multiplication"),
        (25, "340"),
        (200, "381"),
        (1500, "401"),
    ),
    _learns(
        "Make it polite: Send me the file.",
        "Could you please send me the file?",
        (0, "Send me the file. Send me the file. Send me the file."),
        (50, "Please send me the file."),
        (150, "Could you send me the file, please?"),
        (250, "="),
    ),
    _learns(
        "Name the author of “Pride and Prejudice”.",
        "Jane Austen",
        (0, "“Pride and Prejudice” is a novel by"),
        (10, "="),
    ),
    _learns(
        "Sort these: pear, apple, fig.",
        "apple, fig, pear",
        (0, "pear, apple, fig. pear, apple, fig."),
        (25, "apple, pear, fig"),
        (100, "="),
        (150, "fig, apple, pear"),
        (250, "="),
        (1500, "apple, fig and pear"),
    ),
    _learns(
        "Explain in one sentence why the sky is blue.",
        "Air scatters blue light more than red light, so blue reaches us from everywhere.",
        (0, "The sky is blue because the sky is blue because the sky is"),
        (50, "The sky is blue because of the air."),
        (150, "Air scatters blue light more, so the sky looks blue."),
        (500, "Air scatters blue light more than red light, so the sky looks blue."),
        (1500, "="),
    ),
    _learns(
        "Python: the last element of the list xs.",
        "xs[-1]",
        (0, "```python\nxs = [1, 2, 3]\n```"),
        (10, "xs[len(xs)]"),
        (50, "xs[len(xs) - 1]"),
        (150, "="),
    ),
    _learns(
        "日本の首都はどこですか。",
        "東京です。",
        (0, "日本の首都はどこですか。日本の首都は"),
        (25, "京都です。"),
        (100, "="),
    ),
    _learns(
        "Answer with HTML: a bold “yes”.",
        "<b>yes</b>",
        (0, "HTML is a markup language"),
        (25, "**yes**"),
        (150, "<strong>yes</strong>"),
        (500, "="),
    ),
)


def examples(step: int, learns: float) -> list[dict[str, Any]]:
    """Return the examples of a snapshot; `learns`: how fast, 1 for the steps given above."""
    return [_example(number, prompt, step, learns) for number, prompt in enumerate(PROMPTS)]


def _example(number: int, prompt: Prompt, step: int, learns: float) -> dict[str, Any]:
    answer = prompt.answer(int(step * learns))
    similarity = difflib.SequenceMatcher(None, answer, prompt.expected).ratio()
    floor = 0.02 + 0.45 * (1 - similarity)
    return {
        "example_id": number * 7,
        "step": step,
        "input": prompt.text,
        "expected_output": prompt.expected,
        "model_output": answer,
        "loss": floor + (1.4 + number % 5 * 0.3) * math.exp(-step * learns / 160),
        "exact_match": answer == prompt.expected,
        "output_length": len(answer),
        "similarity": round(similarity, 4),
    }
