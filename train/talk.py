"""`python -P -m train.talk RUN_DIR OPTIONS`: a conversation with the model of a run, or one answer.

OPTIONS is a JSON object with the fields of `Options`. Started by
launch/commands/try_model.py, which leaves the terminal to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared, read_prepared
from train.chat.template import Template
from train.data.dataset import SampleFile
from train.data.path_samples import load_text_tools
from train.data.samples import recipes
from train.speakers import Speaker, Way, out_of_memory, speakers

_LABEL = "\033[2m{}:\033[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was typed: without a prompt it is a conversation."""

    prompt: str | None = None
    beside_base: bool = False
    device: str = "auto"
    way: Way


def device_of(name: str) -> torch.device:
    """Return the one device to answer on. Raises UserError if it is not there."""
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((kind for kind, is_there in kinds.items() if is_there), "cpu")
    if not kinds.get(name, True):
        raise UserError(f"--device {name}: torch sees none here", do="--device cpu")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def was_trained_on_texts(prepared: Prepared) -> bool:
    """Return whether the data are texts without prompts; False if they are gone."""
    if prepared.train.is_streamed:
        return False
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(SampleFile(prepared.train)[0][1][0, 0]) == 0
    return False


class Talk:
    """The models that answer, each prompt one after another."""

    def __init__(self, speakers: list[Speaker], sampling: Way, tools: tuple[Any, Template]) -> None:
        self._speakers, self._way, self._tools = speakers, sampling, tools
        self.begin()

    def begin(self) -> None:
        """Forget all that was said."""
        system = [{"role": "system", "content": self._way.system}] if self._way.system else []
        for speaker in self._speakers:
            speaker.messages = list(system)

    def ask(self, prompt: str) -> None:
        """Print what each model answers, as it comes.

        Of two, one still answers if the conversation has become too long for the other. Raises
        UserError if it has for all.
        """
        num_refused = 0
        for speaker in self._speakers:
            try:
                ids = speaker.ids_of(prompt, self._way, self._tools)
            except UserError as error:
                num_refused += 1
                if num_refused == len(self._speakers):
                    raise
                _say(f"airlock: {speaker.label}: {error}\n")
                continue
            if len(self._speakers) > 1:
                label = _LABEL if sys.stdout.isatty() else "{}:"
                _say(label.format(speaker.label) + " ")
            speaker.answer(prompt, ids, self._way, self._tools[0], _say)
            _say("\n")

    def go_on(self, intro: str) -> None:
        """Answer what is typed until the end of the input, or /quit."""
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            _say(intro)
        for prompt in _typed(is_terminal=is_terminal):
            if prompt == "/new":
                self.begin()
                continue
            try:
                self.ask(prompt)
            except KeyboardInterrupt:  # between two answers
                if not is_terminal:
                    return
                _say("\n")
            except UserError as error:
                if not is_terminal or error.code == ExitCode.OUT_OF_MEMORY:
                    raise
                _say(f"airlock: {error}\n")


def _typed(*, is_terminal: bool) -> Iterator[str]:
    """Yield the lines that are not empty."""
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - `input` then knows the arrow keys
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except KeyboardInterrupt:
            if not is_terminal:
                return
            _say("\n")  # the line is forgotten, as in a shell
            continue
        except EOFError:
            _say("\n" if is_terminal else "")
            return
        if line == "/quit":
            return
        if line:
            yield line


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def talk(run: RunDir, options: Options) -> None:
    """Load the models and answer. Raises UserError."""
    config, prepared = read_config(run.config), read_prepared(run)
    has_own = (run.model / "tokenizer.json").is_file()
    folder = run.model if has_own else Path(prepared.model_path)
    # The export has the template that was trained with; its options are the run's.
    recipe, _ = recipes(config)
    tokenizer, template = load_text_tools(folder, recipe)
    sampling, note = options.way, ""
    if not sampling.is_raw and was_trained_on_texts(prepared):
        sampling = Way(
            max_new_tokens=sampling.max_new_tokens, temperature=sampling.temperature, is_raw=True
        )
        note = "It was trained on texts: what you type is continued. "
    device = device_of(options.device)
    try:
        speakers_ = list(speakers(config, run, prepared, device, beside_base=options.beside_base))
    except torch.OutOfMemoryError as error:
        raise out_of_memory(error) from error
    conversation = Talk(speakers_, sampling, (tokenizer, template))
    if options.prompt is not None:
        conversation.ask(options.prompt)
        return
    intro = "Ctrl-C ends an answer, /new begins anew, /quit or Ctrl-D leaves."
    conversation.go_on(f"{run.run_id} on {device}. {note}{intro}\n")


def main() -> None:
    """Answer until told to leave."""
    given = json.loads(sys.argv[2])
    warnings.filterwarnings("ignore", category=FutureWarning)  # libraries, about each other
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        talk(RunDir(Path(sys.argv[1])), Options(**given | {"way": Way(**given["way"])}))
    except KeyboardInterrupt:
        os._exit(int(ExitCode.INTERRUPTED_UNSAVED))  # while it loads: there is nothing to clean up


if __name__ == "__main__":
    main()
