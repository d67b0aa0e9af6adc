"""Flags that other launchers and training scripts have: the command that does the same here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.config.flag_table import Meaning, meaning_of
from launch.config.job import examine
from launch.config.profiles import OTHER_FORMATS, is_known, preset_profile
from launch.config.request import Request
from launch.config.script_request import is_script
from machine.typed import Command, variables
from rundir.errors import UserError
from rundir.paths import runs_folder, shown

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_ALL_GPUS = ("auto", "gpu", "cpu", "all")
_MODULE = ("-m", "--module")
_OF_ALL = ("--num-gpus", "--name")  # options that a script's start has as well
_STEPS_OF_WARMUP = "the warm-up is counted in steps: train.warmup_steps"
_SAMPLES_OF_STEP = "global_batch_size: ranks times rows times accumulation"


def answer(
    option: str, args: Sequence[str], own: Mapping[str, bool], program: str
) -> UserError | None:
    """Return what to say to an `option` that Airlock does not have; None if nothing is like it.

    `args` are all arguments after `program`; `own` are its options, and whether each has a value.
    The advice is the whole command, with every such flag replaced by what does the same.
    """
    command = _Rewritten(args, own, program)
    if option not in command.meanings:
        return None
    command.finish()
    words = "; ".join(f"{flag} is {what}" for flag, what in command.meanings.items())
    return UserError(f"no option {option}: here {words}", do=command.text())


def understood(args: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], str] | None:
    """Return the arguments in Airlock's words, and a line about those that were not.

    None unless they start a script, and all that torchrun's options say of ranks is so here.
    """
    command = _Rewritten(args, own, "")
    if not (command.is_understood and command.meanings):
        return None
    why = "".join(f": {note}" for note in command.notes[:1])
    command.finish()
    meanings = "; ".join(f"{flag} is {what}" for flag, what in command.meanings.items())
    return command.words(), f"{meanings}{why}"


class _Rewritten:
    """A command line, its foreign flags replaced by Airlock's own words."""

    def __init__(self, args: Sequence[str], own: Mapping[str, bool], program: str) -> None:
        self._own, self._program = own, program
        self._rest = list(args)
        self.meanings: dict[str, str] = {}  # what each foreign flag is
        self._kept: list[str] = []
        self._profile: list[str] = []
        self._options: dict[str, str] = {}
        self._settings: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._to_compute: list[tuple[str, str]] = []
        self.notes: list[str] = []  # why they are left out
        self._is_plain = True  # nothing but what a script's start knows, too
        self._script: list[str] = []
        self._of_trainer: dict[str, list[str]] = {}  # flags that a script has itself, with values
        while self._rest:
            self._take()

    def _take(self) -> None:
        word = self._rest.pop(0)
        flag, has_value, value = word.partition("=")
        dashed = flag.replace("_", "-") if flag.startswith("--") else flag
        if word in _MODULE or is_script(word):  # what follows is the script's
            self._script, self._rest = [word, *self._rest], []
        elif dashed in self._own:
            if dashed != flag:
                self.meanings[flag] = dashed
            self._kept.append(dashed + has_value + value)
            if self._own[dashed] and not has_value and self._next_is_value():
                self._kept.append(self._rest.pop(0))
        elif not flag.startswith("-"):
            self._profile.append(word)
        elif (meaning := meaning_of(flag)) is None:
            self._kept.append(word)
        else:
            self._translate(flag, meaning, value if has_value else self._value_of(meaning))

    def _next_is_value(self) -> bool:
        return bool(self._rest) and not self._rest[0].startswith("--")

    def _value_of(self, meaning: Meaning) -> str | None:
        """Return the value after a flag, if it has one: a flag may stand alone."""
        if not self._next_is_value():
            return None
        if meaning.of_flag and self._rest[0].lower() not in (*_TRUE, *_FALSE):
            return None
        return self._rest.pop(0)

    def _translate(self, flag: str, meaning: Meaning, value: str | None) -> None:
        """Put what a flag says into Airlock's words."""
        kind, self.meanings[flag] = meaning.kind, meaning.name or "left out"
        self._is_plain &= "any" in meaning.script or value in meaning.script
        self.notes += [meaning.note] if meaning.note else []
        if kind in ("setting", "computed", "data", "resume"):
            self._of_trainer[flag] = [flag] if value is None else [flag, value]
        names_profile = kind == "profile" or (meaning.name == "model.path" and self._lacks_profile)
        if names_profile and value and is_known(value):
            self._profile, self.meanings[flag] = [value], "the first word, a profile"
        elif kind == "profile" and (value or "").endswith(OTHER_FORMATS):
            self._profile = [str(Path(str(value)).with_suffix(".toml"))]
            self.meanings[flag] = "the first word, a profile, which is a TOML file"
            self.notes.append("once its settings stand there: docs/configuration.md")
        elif kind == "setting":
            self._set(flag, meaning, value)
        elif kind == "computed":
            self._to_compute.append((flag, value or "1"))
        elif kind == "resume":
            self._options[meaning.name] = _run_in(value)
        elif kind == "variable" or (flag == "--gpus" and "," in (value or "")):
            self.meanings[flag] = meaning.name if kind == "variable" else "CUDA_VISIBLE_DEVICES"
            self._variables[self.meanings[flag]] = value or ""
        elif kind in ("option", "data") and value and value not in _ALL_GPUS:
            self._options[meaning.name] = value if kind == "option" else _data_in(value)
        else:
            self.meanings[flag] = "left out"

    def _set(self, flag: str, meaning: Meaning, value: str | None) -> None:
        is_on = (value or "true").lower() not in _FALSE
        lacks_path = value is None and meaning.name.endswith("path")  # it asks for what is usual
        if lacks_path or (meaning.of_flag not in ("", "true") and not is_on):
            self.meanings[flag] = "left out"
            return
        if meaning.of_flag:
            value = meaning.of_flag if is_on else "false"
        self._settings[meaning.name] = meaning.values.get(value or "", value or "true")

    @property
    def _lacks_profile(self) -> bool:
        ahead = (word for word in self._rest if not word.startswith("-"))
        return not (self._profile or any(map(is_known, ahead)))

    @property
    def is_understood(self) -> bool:
        """Whether it starts a script, with no option whose meaning here is another."""
        return self._is_plain and bool(self._script) and not (self._profile or self._variables)

    def finish(self) -> None:
        """Put what depends on ranks and steps into numbers, or give the script what is its own."""
        if self._script:
            self._script += [word for words in self._of_trainer.values() for word in words]
            of_script = "the script's, and stands behind its name"
            self.meanings |= dict.fromkeys(self._of_trainer, of_script)
            self._settings, self._to_compute, self.notes = {}, [], []
            self._options = {key: self._options[key] for key in self._options if key in _OF_ALL}
            return
        if "--plain" in self._kept and self._options.get("--num-gpus", "1") != "1":
            self._kept.remove("--plain")  # which is one process
        if strange := self._options.keys() - self._own.keys():
            self._options = {key: self._options[key] for key in self._options.keys() - strange}
        is_limited = any("max_steps" in word for word in (*self._kept, *self._settings))
        if "train.epochs" in self._settings and not is_limited:
            self._settings["train.max_steps"] = "0"  # a number of steps would decide instead
        for flag, value in self._to_compute:
            is_warmup = "warmup" in flag
            key = "train.warmup_steps" if is_warmup else "train.global_batch_size"
            number, self.meanings[flag] = self._number(key, value), f"part of {key}"
            if number is not None:
                self._settings[key] = str(number)
            self.notes.append(_STEPS_OF_WARMUP if is_warmup else _SAMPLES_OF_STEP)

    def _number(self, key: str, value: str) -> int | None:
        """Return the steps, or the samples of a step, that `value` comes to, if that is known."""
        settings = [f"{name}={value_}" for name, value_ in self._settings.items()]
        profile = self._profile[0] if self._profile else preset_profile()
        try:
            num_gpus = int(self._options.get("--num-gpus", 0)) or None
            request = Request(profile=profile, num_gpus=num_gpus, settings=settings)
            job, _ = examine(request, os.environ)
            train = job.config.train
            if key == "train.warmup_steps":
                return round(float(value) * train.max_steps) if train.max_steps else None
            return int(value) * train.micro_batch_size * job.placement.num_ranks
        except (UserError, ValueError):
            return None

    def words(self) -> list[str]:
        """Return the arguments."""
        words = [*self._profile, *self._kept]
        words += [word for pair in self._options.items() for word in pair]
        words += [word for pair in self._settings.items() for word in ("--set", "=".join(pair))]
        return words + self._script

    def text(self) -> str:
        """Return the whole command, with notes behind it."""
        notes = "; ".join(dict.fromkeys(self.notes)).format(runs=shown(runs_folder()))
        note = f"   # {notes}" if notes else ""
        kept = variables() | self._variables
        return f"{Command(variables=kept, program=self._program, words=self.words())}{note}"


def _run_in(value: str | None) -> str:
    """Return the run of a checkpoint's path, as --resume takes it."""
    if value is None or value.lower() in _TRUE:
        return "latest"
    return re.sub(r"/checkpoints(/[^/]*)?/?$", "", value) or value


def _data_in(value: str) -> str:
    """Return data as --data takes them: a file, or hf:OWNER/NAME."""
    is_of_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", value) and not Path(value).exists()
    is_file_name = Path(value).suffix in (".jsonl", ".json", ".parquet", ".csv", ".txt", ".gz")
    return f"hf:{value}" if is_of_hub and not is_file_name else value
