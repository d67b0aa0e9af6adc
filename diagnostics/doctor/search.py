"""Every line of the logs that a rule knows, and every traceback, in the order they stand there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from diagnostics.doctor.prefix import Time
from diagnostics.doctor.reading import Log, blocks
from diagnostics.doctor.rules import Pattern, Rule
from diagnostics.doctor.segments import Segment, Segments
from diagnostics.doctor.sieve import Sieve, holds
from diagnostics.doctor.tracebacks import Traceback, tracebacks

_MOST_OF_A_RULE = 200  # lines of one log that are kept; later ones tell nothing new
_LINES_BACK = 40  # that are searched for a time
_LONGEST_TEXT = 400  # characters of a line that are quoted

# In torch elastic's summary the rank stands on a line of its own, above the exit code.
_SUMMARY_RANK = re.compile(r"^\s*rank\s*:\s*(\d+)|failed \(exitcode: -?\d+\) local_rank: (\d+)")
_SUMMARY_LINE = re.compile(r"^\s*(?:exitcode|error_file|traceback)\s*:|failed \(exitcode: ")
_FIRST_FAILURE = b"root cause (first observed failure)"
_PROGRESS = (b"it/s", b"s/it", b"loss")
_SUCCESS = re.compile(rb"training (?:is |has )?(?:completed?|finished|done)\b|finished training")
_MUCH = 1000  # signs of progress that the word of success is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A line that `rule` matches, or (no rule) an exception; `own` is the user's line under it."""

    rule: Rule | None
    log: Log
    line: int
    text: str
    position: tuple[int, int, int]  # log, block, byte
    rank: int | None = None
    time: Time | None = None
    groups: dict[str, str | None] = field(default_factory=dict)
    own: tuple[int, str] | None = None  # line of the log, text
    own_code: tuple[str, int, str] | None = None  # file, line, function
    exception: str = ""  # the line that tells it, without a prefix
    last_line: int = 0  # where the message of an exception ends


@dataclass(slots=True)
class Found:
    """What a search has brought to light."""

    sightings: list[Sighting] = field(default_factory=list)
    seen: set[Pattern] = field(default_factory=set)  # of `needs` and `unless`
    first_failed_rank: int | None = None  # as torch elastic's summary says
    num_progress: Counter[str] = field(default_factory=Counter)  # signs since the last trouble


class Search:
    """Searches logs for the lines of `rules`."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.found = Found()
        self._rules = {
            pattern: rule for rule in rules if rule.role != "benign" for pattern in rule.match
        }
        benign = [rule for rule in rules if rule.role == "benign"]
        self._benign = [pattern for rule in benign for pattern in rule.match]
        self._covers = [p for rule in benign if rule.covers_traceback for p in rule.match]
        conditions = {p for rule in rules for p in (*rule.needs, *rule.unless)}
        self._sieve = Sieve([*self._rules, *conditions])
        self._num_seen: Counter[Rule | None] = Counter()
        self._place = (0, 0)

    def read(self, log: Log, number: int) -> None:
        """Search one more log. Raises UserError for one that cannot be read."""
        self._num_seen.clear()
        for index, block in enumerate(blocks(log)):
            self._place = (number, index)
            self._search(log, Segments(block))

    def _search(self, log: Log, segments: Segments) -> None:
        stacks = tracebacks(segments)
        masked = self._benign_stacks(segments, stacks)
        masked |= {start for stack in stacks for start in stack.not_evidence}
        owners = {segment.start: stack for stack in stacks for segment in stack.rest}
        raised = {one.exception.start: one for one in stacks if one.exception is not None}
        owners |= raised
        starts, last = dict(self._sieve.candidates(segments.lower)), 0
        for start in sorted((starts.keys() | raised.keys()) - masked):
            segment = segments.at(start)
            rules: list[tuple[Rule | None, dict[str, str | None]]] = [
                *self._matched(segment, starts.get(start, ()))
            ]
            if start in raised and not raised[start].is_wrapper:
                rules.append((None, {}))
            if not rules or _is_one_of(self._benign, segment):
                continue
            for rule, groups in rules:
                self._num_seen[rule] += 1
                if self._num_seen[rule] <= _MOST_OF_A_RULE:
                    self._add(log, segments, segment, rule, owners.get(start), groups)
            last = segment.end
        self._note_first_failure(segments)
        if last:
            self.found.num_progress[log.name] = 0
        num = sum(segments.lower.count(text, last) for text in _PROGRESS)
        num += _MUCH * bool(_SUCCESS.search(segments.lower, last))
        self.found.num_progress[log.name] += num

    def _matched(
        self, segment: Segment, patterns: Iterable[Pattern]
    ) -> Iterator[tuple[Rule, dict[str, str | None]]]:
        """The rules of those that match, with or without what stands before the line."""
        for pattern in patterns:
            match = None if pattern in self.found.seen else pattern.search(segment)
            if match is None:
                continue
            if pattern in self._rules:
                yield self._rules[pattern], match.groupdict()
            else:
                self.found.seen.add(pattern)

    def _benign_stacks(self, segments: Segments, stacks: list[Traceback]) -> set[int]:
        """All of the tracebacks that the line before them calls harmless, and what they lead to."""
        masked: set[int] = set()
        is_benign = is_chained = False
        for stack in stacks:
            above = (stack.header, *segments.before(stack.header, 1))
            is_covered = any(_is_one_of(self._covers, one) for one in above)
            is_benign = (is_chained and is_benign) or is_covered
            is_chained = bool(stack.next_is)
            if is_benign and stack.exception is not None:
                masked |= {one.start for one in (stack.exception, *stack.rest)}
        return masked

    def _add(
        self, log: Log, segments: Segments, segment: Segment, rule: Rule | None,
        stack: Traceback | None, groups: dict[str, str | None],
    ) -> None:  # fmt: skip
        rank = segment.stripped.rank
        if groups.get("rank"):
            rank = int(groups["rank"] or 0)
        elif rank is None:
            rank = _summary_rank(segments, segment)
        frame = stack.own_frame if stack is not None else None
        end = stack.rest[-1] if stack is not None and stack.rest else segment
        self.found.sightings.append(
            Sighting(
                rule=rule, log=log, line=segments.line_of(segment), text=shortened(segment.raw),
                position=(*self._place, segment.start),
                rank=log.rank if rank is None else rank, time=_time(segments, segment),
                groups=groups,
                own=frame and (segments.line_of(frame.segment), shortened(frame.segment.raw)),
                own_code=frame and (frame.file, frame.line, frame.where),
                exception=shortened(segment.stripped.text), last_line=segments.line_of(end),
            )
        )  # fmt: skip

    def _note_first_failure(self, segments: Segments) -> None:
        position = segments.lower.find(_FIRST_FAILURE)
        if position < 0 or self.found.first_failed_rank is not None:
            return
        here = segments.at(segments.start_at(position))
        for segment in segments.after(here, 6):
            if match := _SUMMARY_RANK.search(segment.stripped.text):
                self.found.first_failed_rank = int(match[1] or match[2])
                return


def _is_one_of(patterns: Iterable[Pattern], segment: Segment) -> bool:
    low = segment.raw.lower().encode()
    return any(holds(low, one.texts) and one.search(segment) for one in patterns)


def _summary_rank(segments: Segments, segment: Segment) -> int | None:
    """The rank that torch elastic's summary means by such a line."""
    if not _SUMMARY_LINE.search(segment.stripped.text):
        return None
    for one in (segment, *segments.before(segment, 5)):
        if match := _SUMMARY_RANK.search(one.stripped.text):
            return int(match[1] or match[2])
    return None


def _time(segments: Segments, segment: Segment) -> Time | None:
    """When it was written: by its own stamp, or the nearest above."""
    if segment.stripped.time is not None:
        return segment.stripped.time
    stamps = (one.stripped.time for one in segments.before(segment, _LINES_BACK))
    return next((stamp for stamp in stamps if stamp is not None), None)


def shortened(text: str) -> str:
    """A line as it is quoted."""
    text = text.strip()
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
