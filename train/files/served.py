"""The one tokenizer of a model folder: the one that serves the model.

transformers, and with it vLLM and others, picks a class by the model's type, and some classes
tokenise otherwise than the folder's tokenizer.json says (Qwen3_5Tokenizer splits numbers into
digits whatever stands there). What is trained on has to be what is served; so the class is asked,
once for each tokenizer and version of transformers, and tokenises where it differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rundir.atomic import write_text
from rundir.errors import ExitCode, UserError
from rundir.paths import ROOT, cache_folder
from train.files.ask_class import WITH_TORCH, ask, plain
from train.files.content import digest_of

# All that a tokenizer of transformers is made from, besides config.json.
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "*.model",
    "tekken.json",
)
_FORMAT = "1"  # of the answers; part of their key
_DECIDE = (  # which class it is, in config.json
    "model_type",
    "model_name",
    "tokenizer_class",
    "auto_map",
    "transformers_version",
)
_LIBRARIES = ("transformers", "tokenizers", "mistral-common", "sentencepiece", "tiktoken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the class of a model does.

    `backend` is its tokenizer as JSON if it is not that of tokenizer.json, `changes_ids` whether it
    may give texts other ids, and `digest` of all that decides ids. A class that can do more than
    JSON can say has no `backend`; `differs` is a text, the class's pieces and those of
    tokenizer.json. `problem` says why there is no class.
    """

    class_name: str = ""
    backend: str = ""
    digest: str = ""
    changes_ids: bool = False
    splits_marks: bool = False  # special tokens in a text are ordinary text
    differs: list[Any] | None = None
    problem: str = ""


def tokenizer_of(model_path: Path) -> Any:
    """Return the tokenizer of a model folder, which neither truncates nor pads.

    Raises UserError if there is none, or none that gives the ids that the model is served with.
    """
    answer = served(model_path)
    if not answer.backend:
        return file_tokenizer(model_path)
    from tokenizers import Tokenizer

    tokenizer = plain(Tokenizer.from_str(answer.backend))
    tokenizer.encode_special_tokens = answer.splits_marks
    return tokenizer


def file_tokenizer(model_path: Path) -> Any:
    """Return the tokenizer that tokenizer.json describes. Raises UserError if there is none."""
    from tokenizers import Tokenizer

    return plain(Tokenizer.from_file(str(_tokenizer_file(model_path))))


def _tokenizer_file(model_path: Path) -> Path:
    file = model_path / "tokenizer.json"
    if not file.is_file():
        raise UserError(
            f"{model_path} has no tokenizer.json",
            do="save it with AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)",
            code=ExitCode.DATA,
        )
    return file


def served(model_path: Path) -> Served:
    """Return what transformers' class for a model folder does.

    Raises UserError if only the class can tokenise as it does, or if asking it was ended.
    """
    _tokenizer_file(model_path)
    answer = _answer(model_path, _key(model_path))
    if answer.differs:
        text, theirs, ours = answer.differs
        raise UserError(
            f"{model_path}: {answer.class_name}, which transformers takes for this model, "
            f"tokenises {text!r} as {theirs}, tokenizer.json as {ours}; Airlock trains on "
            "tokenizer.json, and the model would be served other ids",
            do='"tokenizer_class": "TokenizersBackend" in tokenizer_config.json, if tokenizer.json '
            "is right; else another model",
            code=ExitCode.DATA,
        )
    return answer


def line_about(model_path: Path) -> str | None:
    """Return a line to print if a model's class cannot be asked; None if it can."""
    problem = served(model_path).problem
    if not problem:
        return None
    return (
        "transformers cannot load the model's tokenizer, so nothing tells whether it is served "
        f"with the ids of tokenizer.json, which are trained on: {problem}"
    )


@lru_cache(maxsize=4)
def _answer(model_path: Path, key: str) -> Served:
    """Return the answer about a tokenizer: from the cache, or of the class itself."""
    note = cache_folder() / "tokenizers" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Served(**json.loads(note.read_text(encoding="utf-8")))
    answer = Served(**_asked(model_path))
    if not answer.problem:  # another time it may be able to
        with contextlib.suppress(OSError):  # the note only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_text(note, json.dumps(asdict(answer)), durable=False)
    return answer


def _asked(model_path: Path) -> dict[str, Any]:
    """Ask the class here where transformers is loaded anyway, else in a child process."""
    if "transformers" in sys.modules:
        return ask(model_path)
    answer = _child(model_path)
    return _child(model_path, WITH_TORCH) if "problem" in answer else answer


def _child(model_path: Path, *options: str) -> dict[str, Any]:
    """Ask the class in a child process. Raises UserError if that was killed."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "-P", "-m", ask.__module__, str(model_path), *options],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        raise UserError(
            "the process that loads the model's tokenizer was killed",
            do="if nobody did that, memory ran out: `dmesg | grep -i oom`",
            code=ExitCode.PREFLIGHT,
        )
    if done.returncode:
        last_line = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        return {"problem": f"it ended with {done.returncode}: {last_line}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _key(model_path: Path) -> str:
    """Return a digest of all that decides what a class does."""
    files = {file.name: file for name in TOKENIZER_FILES for file in model_path.glob(name)}
    parts = [f"{name} {digest_of(file)}" for name, file in sorted(files.items()) if file.is_file()]
    with contextlib.suppress(OSError, ValueError, AttributeError):  # reported where it is needed
        config = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
        parts += [f"{name} {config.get(name)}" for name in _DECIDE]
    parts += [f"{name} {_version(name)}" for name in _LIBRARIES]
    return hashlib.sha256("\n".join([_FORMAT, *parts]).encode()).hexdigest()[:32]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
