"""What the command line says to words that it does not know: a command that works instead."""

from __future__ import annotations

import difflib
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from machine.processes.output import end_with
from machine.typed import console_program, ls_runs, start_program
from rundir.errors import ExitCode, UserError
from rundir.paths import runs_folder, shown

_HelpError = getattr(click.exceptions, "NoArgsIsHelpError", ())  # before 8.2 help is no error
_OF_ONE_RUN = ("stop", "doctor", "try", "push", "track")
_USUAL = {"profile": "tiny", "run": "latest"}  # arguments, where they are missing
_LOGS = ("log", "logs", "tail", "follow", "output")


class AnsweringCommand(click.Command):
    """A command that answers what it cannot read with a command that works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            rewritten = _rewritten(ctx, args) if isinstance(error, click.NoSuchOption) else None
            if rewritten is None:
                refuse(_answer(error, ctx, args))
            words, line = rewritten
            click.echo(f"airlock: {line}", err=True)
            return self.parse_args(ctx, words)


class AnsweringGroup(click.Group):
    """Commands that answer, as a group that answers unknown ones with those that are meant.

    A script with its options stands for its run, as behind torchrun.
    """

    command_class = AnsweringCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if _begins_with_script(args):
            args = ["run", *args]
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if isinstance(error, _HelpError):
                raise
            do = f"{console_program()} --help   # all commands"
            refuse(UserError(_said(error), do=do))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            do = _instead(args[0], args[1:], self.list_commands(ctx))
            refuse(UserError(f"no command {args[0]!r}", do=do))
        return super().resolve_command(ctx, args)


def refuse(error: UserError) -> NoReturn:
    """End the program with an error, as commands do."""

    def fail(*_: object) -> ExitCode:
        raise error

    end_with(fail)


def _answer(error: click.UsageError, ctx: click.Context, args: Sequence[str]) -> UserError:
    """Return what to say to a command line that cannot be read."""
    program = start_program()
    if ctx.info_name != "run":
        program = f"{console_program()} {ctx.info_name}"
    if isinstance(error, click.NoSuchOption):
        from launch.config.other_flags import answer

        if error_text := answer(error.option_name, args, _own_options(ctx), program):
            return error_text
    if isinstance(error, click.MissingParameter) and error.param is not None:
        missing = _USUAL.get(error.param.name or "")
        if missing is not None:
            return UserError(_said(error), do=f"{program} {shlex.join([missing, *args])}")
    if isinstance(error, click.BadParameter) and (near := _nearest_value(error, args)):
        return UserError(_said(error), do=f"{program} {shlex.join(near)}")
    do = f"{program} --help   # its options; what else can be set (--set): docs/configuration.md"
    return UserError(_said(error), do=do)


def _rewritten(ctx: click.Context, args: Sequence[str]) -> tuple[list[str], str] | None:
    """Return the start of a script in Airlock's words, if it was typed in another launcher's."""
    from launch.config.other_flags import understood

    return understood(args, _own_options(ctx)) if ctx.info_name == "run" else None


def _own_options(ctx: click.Context) -> dict[str, bool]:
    """Return the names of a command's options, and whether each takes a value."""
    return {
        name: not param.is_flag
        for param in ctx.command.params
        if isinstance(param, click.Option)
        for name in param.opts
    }


def _nearest_value(error: click.BadParameter, args: Sequence[str]) -> list[str]:
    """Return the arguments with the nearest of the possible values; [] if nothing is near."""
    if error.param is None or not isinstance(error.param.type, click.Choice):
        return []
    values = [str(choice) for choice in error.param.type.choices]
    for place, word in enumerate(args):
        if word not in values and (near := difflib.get_close_matches(word, values, n=1)):
            return [*args[:place], *near, *args[place + 1 :]]
    return []


def _said(error: click.UsageError) -> str:
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _instead(typed: str, rest: Sequence[str], known: Sequence[str]) -> str:
    """Return what to type instead of an unknown command and the words after it."""
    console, word = console_program(), typed.lower()
    if word in ("help", "commands", "usage"):
        return " ".join([console, *(word_ for word_ in rest if word_ in known), "--help"])
    if _can_be_started(typed):
        return f"{start_program()} {shlex.join([typed, *rest])}"
    if word in _LOGS:
        run = shown(runs_folder() / (rest[0] if rest else "latest"))
        return f"tail -F {shlex.quote(run)}/logs/attempt*/rank*.log   # what its ranks print"
    if word in ("export", "merge", "save"):
        run = shown(runs_folder() / (rest[0] if rest else "latest"))
        return (
            f"ls {shlex.quote(run)}/model   # the whole model, as the run has exported it\n"
            f"  → {console} push {shlex.join([*rest[:1]] or ['latest'])} OWNER/NAME   # uploads it"
        )
    if word in ("resume", "continue"):
        return f"{start_program()} {shlex.join(['--resume', *(rest or ['latest'])])}"
    return _nearest(word, rest, known)


def _begins_with_script(args: Sequence[str]) -> bool:
    """Return whether there is a script behind nothing but options, as behind torchrun."""
    from launch.config.script_request import is_script

    first = args[0] if args else ""
    names_one = any(word in ("-m", "--module") or is_script(word) for word in args)
    is_option = first.startswith("-") and first not in ("-h", "--help")
    return names_one and (is_option or is_script(first))


def _can_be_started(word: str) -> bool:
    from launch.config.profiles import is_known
    from launch.config.script_request import is_script

    return is_known(word) or is_script(word)


def _nearest(word: str, rest: Sequence[str], known: Sequence[str]) -> str:
    console = console_program()
    file = Path(__file__).with_suffix(".toml")  # what other programs call the commands
    words = tomllib.loads(file.read_text(encoding="utf-8")).items()
    called: dict[str, str] = {
        other: command for command, others in words for other in others.split()
    }
    near = difflib.get_close_matches(word, [*known, *called], n=1, cutoff=0.7)
    if not near:
        return f"{console} --help   # all commands"
    command = called.get(near[0], near[0])
    if command == "run":
        return f"{start_program()} {shlex.join(rest)}".rstrip()
    if command == "ps":
        return f"{console} ps   # runs that are going on; all: {ls_runs()}"
    latest = ["latest"] if not rest and command in _OF_ONE_RUN else []
    return f"{console} {shlex.join([command, *rest, *latest])}"
