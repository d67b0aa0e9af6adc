"""Every line of the logs that a rule knows, and every traceback, in the order they stand there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from diagnostics.doctor.logs.prefilter import Prefilter, holds
from diagnostics.doctor.logs.reading import Log, blocks
from diagnostics.doctor.logs.rules import Pattern, Rule
from diagnostics.doctor.logs.segments import Segment, Segments
from diagnostics.doctor.logs.sightings import Groups, Sighting, first_failed_rank, sighting_of
from diagnostics.doctor.logs.tracebacks import Traceback, tracebacks

_MOST_OF_A_RULE = 200  # lines of one log that are kept; later ones tell nothing new
_PROGRESS = re.compile(rb"(?:it/s|s/it|loss)[^\r\n]*")  # to the end of the line, or state of a bar
_SUCCESS = re.compile(
    rb"training (?:is |has )?(?:completed?|finished|done)\b|finished training|"
    rb"worker group successfully finished"
)
_NARROWEST = 60  # characters of a line that may be broken
_MUCH = 1000  # signs of progress that the word of success is worth

Candidates = dict[int, set[Pattern]]  # where lines begin, and patterns that may match them


@dataclass(slots=True)
class Found:
    """What a search has brought to light."""

    sightings: list[Sighting] = field(default_factory=list)
    seen: set[Pattern] = field(default_factory=set)  # of `needs` and `unless`
    first_failed_rank: int | None = None  # as torch elastic's summary says
    num_progress: Counter[str] = field(default_factory=Counter)  # signs since the last trouble
    num_signs: Counter[str] = field(default_factory=Counter)  # of progress, from a first warning on


class Search:
    """Searches logs for the lines of `rules`."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.found = Found()
        self._rules = {pattern: rule for rule in rules for pattern in rule.match}
        self._benign = {pattern for pattern, rule in self._rules.items() if rule.role == "benign"}
        self._conditions = {one for rule in rules for one in (*rule.needs, *rule.unless)}
        self._prefilter = Prefilter([*self._rules, *self._conditions])
        self._num_seen: Counter[Rule | None] = Counter()
        self._has_warned = False  # the log that is read

    def read(self, log: Log, number: int) -> None:
        """Search one more log. Raises UserError for one that cannot be read."""
        self._num_seen.clear()
        self._has_warned = False
        for index, block in enumerate(blocks(log)):
            self._search(log, (number, index), Segments(block))

    def _search(self, log: Log, place: tuple[int, int], segments: Segments) -> None:
        candidates: Candidates = dict(self._prefilter.candidates(segments.lower))
        stacks = tracebacks(segments)
        raised = {one.exception.start: one for one in stacks if one.exception is not None}
        owners = {line.start: stack for stack in stacks for line in stack.rest} | raised
        masked = self._covered(segments, stacks, candidates)
        masked |= {start for stack in stacks for start in stack.not_evidence}
        last = counted = 0
        for start in sorted((candidates.keys() | raised.keys()) - masked):
            segment, patterns = self._told(segments, start, raised, candidates)
            rules = self._matched(segment, patterns - self._benign)
            if start in raised and not raised[start].is_wrapper:
                rules[None] = {}
            if not rules or self._matched(segment, patterns & self._benign):
                continue
            counted = self._count_signs(log, segments, counted, start)
            for rule, groups in rules.items():
                self._num_seen[rule] += 1
                if self._num_seen[rule] <= _MOST_OF_A_RULE:
                    seen = sighting_of(
                        log=log,
                        place=place,
                        segments=segments,
                        segment=segment,
                        rule=rule,
                        groups=groups,
                        stack=owners.get(start),
                    )
                    seen = replace(seen, num_signs=self.found.num_signs[log.name])
                    self.found.sightings.append(seen)
                    self._has_warned |= seen.is_warning
            last = segment.end
        self._count_signs(log, segments, counted, len(segments.lower))
        self._look_around(log, segments, last)

    def _count_signs(self, log: Log, segments: Segments, start: int, end: int) -> int:
        """Count the progress between two places, once there was a warning; return the second."""
        if self._has_warned:
            self.found.num_signs[log.name] += _num_signs(segments.lower, start, end)
        return end

    def _look_around(self, log: Log, segments: Segments, last: int) -> None:
        """Note who failed first, and what progress there is after the last trouble, at `last`."""
        found = self.found
        if found.first_failed_rank is None:
            found.first_failed_rank = first_failed_rank(segments)
        if last:
            found.num_progress[log.name] = 0
        num = _num_signs(segments.lower, last)
        num += _MUCH * bool(_SUCCESS.search(segments.lower, last))
        found.num_progress[log.name] += num

    def _told(
        self, segments: Segments, start: int, raised: dict[int, Traceback], candidates: Candidates
    ) -> tuple[Segment, set[Pattern]]:
        """A line, with what was broken off its message, and the patterns that may match it."""
        segment, patterns = segments.at(start), candidates.get(start, set())
        told = raised[start].told if start in raised else None
        if told is None:
            return segment, patterns
        is_broken = told is not segment
        below: set[Pattern] = set()
        if not is_broken and not self._matched(segment, patterns):
            told = _with_what_is_below(segments, segment)
            below = _told_below(segments, segment, candidates)
        if told is segment:
            return segment, patterns
        text = told.raw.lower().encode()
        known = (*self._rules, *self._conditions)
        possible = patterns | {one for one in known if holds(text, one.texts)} - below
        if is_broken or self._matched(told, possible):
            return told, possible
        return segment, patterns

    def _matched(self, segment: Segment, patterns: Iterable[Pattern]) -> dict[Rule | None, Groups]:
        """The rules of those that match, with or without what stands before the line."""
        found: dict[Rule | None, Groups] = {}
        for pattern in patterns:
            match = None if pattern in self.found.seen else pattern.search(segment)
            if match is None:
                continue
            if pattern in self._conditions:
                self.found.seen.add(pattern)
            else:  # of several expressions of one rule, each may tell something
                groups = found.setdefault(self._rules[pattern], {})
                told = {name: text for name, text in match.groupdict().items() if text}
                groups.update(match.groupdict() | groups | told)
        return found

    def _covered(
        self, segments: Segments, stacks: list[Traceback], candidates: Candidates
    ) -> set[int]:
        """What the tracebacks tell that the line above calls harmless, and those they lead to."""
        masked: set[int] = set()
        is_covered = is_chained = False
        for stack in stacks:
            above = [stack.header, *segments.before(stack.header, 1)]
            is_covered = (
                stack.is_ignored
                or (is_covered and is_chained)
                or any(
                    rule is not None and rule.covers_traceback
                    for one in above
                    for rule in self._matched(one, candidates.get(one.start, set()) & self._benign)
                )
            )
            is_chained = bool(stack.next_is)
            if is_covered and stack.exception is not None:
                masked |= {one.start for one in (stack.exception, *stack.rest)}
        return masked


def _with_what_is_below(segments: Segments, line: Segment) -> Segment:
    """An exception's line with the next, if a width may have broken it: none near it is longer."""
    below = list(segments.after(line, 1))
    around = [*segments.before(line, 3), *below]
    if len(line.raw) < _NARROWEST or any(len(one.raw) > len(line.raw) for one in around):
        return line
    rest = "".join(one.raw for one in below if not one.stripped.num_prefixes)
    return Segment(line.start, line.end, line.raw + rest) if rest else line


def _told_below(segments: Segments, line: Segment, candidates: Candidates) -> set[Pattern]:
    """What the next line tells by itself: it is a launcher's, and not the rest of this one."""
    below = next(segments.after(line, 1), None)
    possible = candidates.get(below.start, set()) if below is not None else set()
    return {one for one in possible if below is not None and one.search(below)}


def _num_signs(text: bytes, start: int, end: int | None = None) -> int:
    """How many lines show progress; what a tracker sums up at the end of a run is none."""
    found = islice(_PROGRESS.finditer(text, start, len(text) if end is None else end), _MUCH)
    before = (text[text.rfind(b"\n", 0, one.start()) + 1 : one.start()] for one in found)
    return sum(b"wandb:" not in line for line in before)
