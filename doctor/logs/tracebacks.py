"""Python tracebacks in a log: where they end, what was raised, and by which line of code."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from itertools import pairwise

from doctor.logs.segments import Segment, Segments

HEADER = b"traceback (most recent call last)"
_MOST_LINES = 600  # of one traceback, including interleaved ones of other ranks
_MOST_BETWEEN = 60  # unrelated lines between its calls, or before its exception
_MESSAGE_LINES = 14
_MOST = 2000  # tracebacks of one block: further ones add nothing new

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<where>.+))?')
_IN_NOTEBOOK = re.compile(r"^(\w+)\s{2,}Traceback \(most")
_ANY_FRAME = re.compile(rb'file "[^"\n]+", line \d+(?:, in |\s*$)', re.MULTILINE)
_RICH_FRAME = re.compile(r"^│\s(?P<file>\S+):(?P<line>\d+) in (?P<where>\S+)")
_RIGHT_BELOW = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:?\s*)$")
# Further down: a class named like an exception, qualified by a module, or a compound of two words.
_EXCEPTION = re.compile(
    r"^(?P<name>(?:[a-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout)"
    r"|[A-Z][a-z]+[A-Z]\w+)(?:: (?P<message>.*)|:?\s*)$"
)
_HANDLING = "During handling of the above exception, another exception occurred"
_CAUSING = "The above exception was the direct cause of the following exception"
_WRAPPED = re.compile(r"^Caught \w+ in ")  # by DataLoader, for what a worker raised
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error")  # torch's spawn
_NOT_OWN = re.compile(
    r"site-packages/|dist-packages/|/lib(?:64)?/python\d|^<|/torch/|/bin/[\w.-]+$|"
    r"(?:conda\d?|envs/[^/]+|Python3\d+)/lib/|/runpy\.py$|"
    r"/launch/(?:start/)?rank/(?:rank|zygote|script\w*)\.py$",  # Airlock's, below the user's script
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a traceback, and the segment that names it."""

    segment: Segment
    file: str
    line: int
    where: str


def show_code(file: str, line: int | str) -> str:
    """Return a command that opens a source file at a line."""
    return f"less -N +{line} {shlex.quote(file)}"


def is_own(file: str) -> bool:
    """Return whether code in `file` is the user's own rather than a library's."""
    return not _NOT_OWN.search(file.replace("\\", "/"))


@dataclass(slots=True)
class Traceback:
    """One traceback. `exception` is the line that names what was raised."""

    header: Segment
    rank: int | None
    frames: list[Frame] = field(default_factory=list)
    code: set[int] = field(default_factory=set)  # starts of quoted source lines
    exception: Segment | None = None
    name: str = ""
    message: str = ""
    in_notebook: str = ""  # the exception's name, which IPython puts into the header
    rest: list[Segment] = field(default_factory=list)  # further lines of the message
    next_is: str = ""  # how the next traceback is chained to this one, if it is
    around: Traceback | None = None  # the rank's traceback, if this one is its worker's
    rank_told: int | None = None  # from the traceback above, if its lines carry no rank
    first: Segment | None = None  # the header of the first traceback that this one is chained to
    num_between: int = 0  # unrelated lines since the last call

    @property
    def own_frame(self) -> Frame | None:
        """The innermost call in the user's own code."""
        frames = [*(self.around.frames if self.around else ()), *self.frames]
        return next((frame for frame in reversed(frames) if is_own(frame.file)), None)

    @property
    def begin(self) -> Segment:
        """The header of the first traceback that it is chained to, or its own."""
        return self.first or self.header

    @property
    def not_evidence(self) -> set[int]:
        """The starts of lines that are no evidence alone: source, and a notebook's header."""
        return self.code | ({self.header.start} if self.in_notebook else set())

    @property
    def is_wrapper(self) -> bool:
        """True if the exception wraps another one, whose own traceback follows."""
        is_spawners = self.spawned is not None
        return bool(_WRAPPED.match(self.message)) or is_spawners or self.next_is == _HANDLING

    @property
    def told(self) -> Segment | None:
        """The exception's line; in a boxed traceback, rejoined with what was wrapped."""
        line, box = self.exception, self.header.stripped.text.rstrip()
        if line is None or not box.startswith("╭"):
            return line
        rest = _broken_off(line.stripped.text, self.rest, len(box))
        return Segment(line.start, line.end, line.raw.rstrip() + rest) if rest else line

    @property
    def spawned(self) -> int | None:
        """The number of the child process in torch's spawn error, whose traceback follows."""
        numbers = (_SPAWNED.match(line.stripped.text) for line in self.rest)
        return next((int(number[1]) for number in numbers if number), None)

    @property
    def is_ignored(self) -> bool:
        """True if Python prints it and goes on, as for finalizers at exit."""
        return any(frame.where == "_run_finalizers" for frame in self.frames)


def tracebacks(segments: Segments) -> list[Traceback]:
    """Return the tracebacks of a block in order, including those whose beginning is missing."""
    stacks: list[Traceback] = []
    position = -1
    while len(stacks) < _MOST and (position := segments.lower.find(HEADER, position + 1)) >= 0:
        header = segments.at(segments.start_at(position))
        stacks.append(_follow(segments, header))
        position = header.end
    known = {frame.segment.start for stack in stacks for frame in stack.frames}
    for match in _ANY_FRAME.finditer(segments.lower):
        if len(stacks) >= _MOST:
            break
        start = segments.start_at(match.start())
        if start not in known:
            stacks.append(_follow(segments, segments.at(start), torn=True))
            known |= {frame.segment.start for frame in stacks[-1].frames}
    stacks.sort(key=lambda stack: stack.header.start)
    for around, inner in pairwise(stacks):
        if _WRAPPED.match(around.message) and around.rank == inner.rank:
            inner.around = around
        if (inner.around or around.next_is) and around.rank == inner.rank:
            inner.first = around.first or around.header
        if inner.rank is None:
            inner.rank_told = around.rank_told if inner.around else around.spawned
    return stacks


def _follow(segments: Segments, header: Segment, *, torn: bool = False) -> Traceback:
    """Parse the traceback under `header`, skipping lines that carry another rank.

    A `torn` one begins with a call. Nothing may stand between its calls and its exception.
    """
    traceback = Traceback(header, header.stripped.rank)
    if in_notebook := _IN_NOTEBOOK.match(header.stripped.text):
        traceback.in_notebook = in_notebook[1]
    label = _label(segments, header)
    indent = len(_indent(header.stripped.text))
    if torn:
        indent = max(0, indent - 2)
        _take(traceback, header, indent)
    for segment in segments.after(header, _MOST_LINES):
        if segment.stripped.rank != label:
            continue
        if HEADER in segment.stripped.text.lower().encode():
            break
        if traceback.exception is not None:
            if not _take_message(traceback, segment, traceback.exception):
                break
        elif not _take(traceback, segment, indent):
            traceback.num_between += 1
            if traceback.num_between > (0 if torn else _MOST_BETWEEN):
                break
    return traceback


def _broken_off(line: str, rest: list[Segment], width: int) -> str:
    """Return the rest of a message that was wrapped between words, at `width`."""
    rest_text = ""
    for segment in rest:
        text = segment.stripped.text.rstrip()
        word = text.partition(" ")[0]
        if not word or len(line) + 1 + len(word) <= width:  # it would have fitted
            break
        is_folded = len(line) >= width and " " not in line  # one long word
        rest_text += ("" if is_folded else " ") + text
        line = text
    return rest_text


def _label(segments: Segments, header: Segment) -> int | None:
    """Return the rank that all its lines carry; a logger may prefix only the first."""
    rank = header.stripped.rank
    near = {segment.stripped.rank for segment in segments.after(header, 3)}
    return rank if rank in near else None


def _take_message(traceback: Traceback, segment: Segment, exception: Segment) -> bool:
    """Take a line below the exception if it continues the message; a logger's line does not."""
    if segment.stripped.text.startswith((_HANDLING, _CAUSING)):
        is_handling = segment.stripped.text.startswith(_HANDLING)
        traceback.next_is = _HANDLING if is_handling else _CAUSING
        return False
    is_entry = segment.stripped.num_prefixes > exception.stripped.num_prefixes
    if is_entry or len(traceback.rest) >= _MESSAGE_LINES:
        return False
    traceback.rest.append(segment)
    return True


def _take(traceback: Traceback, segment: Segment, indent: int) -> bool:
    """Take a line before the exception: a call, its source, or the exception itself."""
    text, is_right_below = segment.stripped.text, traceback.num_between == 0
    if frame := _FRAME.match(text) or _RICH_FRAME.match(text):
        where, traceback.num_between = frame["where"] or "", 0
        traceback.frames.append(Frame(segment, frame["file"], int(frame["line"]), where))
    elif text.startswith(("│", "╭", "╰")) or (is_right_below and len(_indent(text)) > indent):
        traceback.code.add(segment.start)
    elif traceback.in_notebook:
        traceback.code.add(segment.start)
        name, _, message = text.partition(": ")
        if name.rpartition(".")[2] == traceback.in_notebook:
            traceback.exception, traceback.name, traceback.message = segment, name, message
            traceback.code.discard(segment.start)
    elif traceback.frames and (raised := _exception(text.lstrip(), is_right_below=is_right_below)):
        traceback.exception = segment
        traceback.name, traceback.message = raised["name"], raised["message"] or ""
    else:
        return False
    return True


def _exception(text: str, *, is_right_below: bool) -> re.Match[str] | None:
    return (_RIGHT_BELOW if is_right_below else _EXCEPTION).match(text)


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]
