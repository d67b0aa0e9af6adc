"""Tokenizers of every kind, chat templates, and conversations: what a served model would get."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

# Where transformers is loaded, a model's tokenizer is read here, and by no child that imports it.
import transformers  # noqa: F401
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.train.beside_trl.models import template, template_names
from tests.train.chat.test_template import CHATML, MARKING, TEMPLATES
from tests.train.chat_templates import written

Chat = list[dict[str, Any]]

LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content | trim }} "
    "[/INST]{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
VICUNA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} "
    "{% else %}ASSISTANT: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
SPACED = VICUNA.replace("ASSISTANT:{% endif", "ASSISTANT: {% endif")  # the prompt ends with a space
_OWN = {
    "Llama-2": LLAMA_2,
    "Zephyr": ZEPHYR,
    "Vicuna": VICUNA,
    "Vicuna, asking with a space": SPACED,
    "ChatML": written.CHATML,
    "ChatML, own system prompt": CHATML,
    "Llama-3": written.LLAMA_3,
    "Mistral": written.MISTRAL,
    "Gemma": written.GEMMA,
    "Qwen3": written.QWEN_3,
    "with generation marks": MARKING,
    **{f"{name} (synthetic)": text for name, text in TEMPLATES.items()},
}
_BAR = "[|\uff5c]"  # DeepSeek's is a wide one
_MARK = re.compile(
    rf"<{_BAR}[^|\uff5c<>{{}}']+{_BAR}>|<\w+\|>|<\|\w+>|<(?:start|end)_of_\w+>|</?think>"
)
_WORDS = (
    "the model answers größe 你好 🚀 2+5=7 2025 def f(x): { } <b> 100% user assistant Hello sure"
)


def templates() -> dict[str, str]:
    """Return chat templates by name: those of the tests, and the models' that TRL brings."""
    names = [name for name in template_names() if not name.endswith("_training")]
    assert len(names) > 30, "pip install -r requirements-dev.txt"
    return _OWN | {name: template(name) for name in names}


def marks() -> list[str]:
    """Return the special tokens that stand in any template."""
    found = {one for text in templates().values() for one in _MARK.findall(text)}
    return ["<unk>", "<s>", "</s>", *sorted(found)]


def _metaspace(scheme: str, model: Any = None) -> Callable[[], Any]:
    def made() -> Any:
        made_model = models.BPE(unk_token="<unk>") if model is None else model()  # noqa: S106
        return (
            made_model,
            pre_tokenizers.Metaspace(prepend_scheme=scheme),
            decoders.Metaspace(prepend_scheme=scheme),
            None,
        )

    return made


def _prepend() -> Any:
    space = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    back: list[Any] = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return models.BPE(unk_token="<unk>"), None, decoders.Sequence(back), space  # noqa: S106


def _byte_level(*, prefix: bool) -> Callable[[], Any]:
    return lambda: (
        models.BPE(),
        pre_tokenizers.ByteLevel(add_prefix_space=prefix),
        decoders.ByteLevel(),
        None,
    )


def _word_piece() -> Any:
    model = models.WordPiece(unk_token="<unk>")  # noqa: S106
    return model, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), None


KINDS: dict[str, Callable[[], Any]] = {
    "byte-level": _byte_level(prefix=False),
    "byte-level, prefix": _byte_level(prefix=True),
    "Prepend": _prepend,
    "Metaspace first": _metaspace("first"),
    "Metaspace always": _metaspace("always"),
    "Metaspace never": _metaspace("never"),
    "unigram first": _metaspace("first", models.Unigram),
    "unigram always": _metaspace("always", models.Unigram),
    "WordPiece": _word_piece,
}
_TRAINERS = {
    models.BPE: trainers.BpeTrainer,
    models.Unigram: trainers.UnigramTrainer,
    models.WordPiece: trainers.WordPieceTrainer,
}


def tokenizer_of(kind: str, special: Sequence[str]) -> Tokenizer:
    """Train a small tokenizer of a kind, on words that the conversations have too."""
    model, pre_tokenizer, decoder, normalizer = KINDS[kind]()
    made = Tokenizer(model)
    parts: Any = made
    if normalizer is not None:
        parts.normalizer = normalizer
    if pre_tokenizer is not None:
        parts.pre_tokenizer = pre_tokenizer
    parts.decoder = decoder
    given: dict[str, Any] = {"vocab_size": len(special) + 700, "show_progress": False}
    if isinstance(model, models.Unigram):
        given["unk_token"] = "<unk>"  # noqa: S105
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind.startswith("byte") else list(_LETTERS)
    trainer = _TRAINERS[type(model)](
        special_tokens=list(special), initial_alphabet=alphabet, **given
    )
    words = _WORDS.split()
    lines = [
        " ".join(words[i % len(words)] for i in range(start, start + 7)) + "\n\n" * (start % 2)
        for start in range(60)
    ]
    made.train_from_iterator(lines, trainer)
    return made


_LETTERS = "▁ \n" + "".join(chr(code) for code in range(33, 127)) + "größe你好🚀é"


def _chat(*texts: str, system: str = "") -> Chat:
    roles = ("user", "assistant")
    first = [{"role": "system", "content": system}] if system else []
    return first + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


CHATS: list[Chat] = [
    _chat("2+5", "7"),
    _chat("Hello", "Hello the model"),
    _chat("Hello", "sure", "2+5=7 ?", "the answers", "größe", "你好 🚀"),
    _chat("the model", " Hello"),
    _chat("the model", "\nHello"),
    _chat("the model", "\n\nHello\n", "and", "\n 2025"),
    _chat("the model ", "Hello "),
    _chat("2025", "2025 100%", "2025\n", "2025"),
    _chat("def f(x):", "def f(x): { }", "<b>", "<b>user</b>"),
    _chat("user", "assistant", "assistant", "user"),
    _chat("🚀", "🚀", "é", "größe größe"),
    _chat("Hello", "sure", system="the model answers"),
]
