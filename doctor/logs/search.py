"""The search for every line that a rule knows, and every traceback, in order of appearance."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from doctor.logs.ending import MOST_AFTER, last_begin, num_lines_after
from doctor.logs.prefilter import Prefilter, holds
from doctor.logs.reading import Log, blocks
from doctor.logs.rules import RAISED, Pattern, Rule
from doctor.logs.segments import Segment, Segments, lines_of_own_report
from doctor.logs.sightings import Groups, Sighting, first_failed_rank, sighting_of
from doctor.logs.tracebacks import Traceback, tracebacks
from doctor.logs.verdict import Evidence

_MOST_OF_A_RULE = 200  # lines of one log that are kept; later ones add nothing new
_PROGRESS = re.compile(rb"(?:it/s|s/it|loss)[^\r\n]*")  # to the end of the line or bar state
_SUCCESS = re.compile(
    rb"training (?:is |has )?(?:completed?|finished|done)\b|finished training|"
    rb"worker group successfully finished"
)
_NARROWEST = 60  # characters of a line that may have been wrapped
_MUCH = 1000  # signs of progress that a message of success counts for

Candidates = dict[int, set[Pattern]]  # start of a line -> patterns that may match it


@dataclass(slots=True)
class Found:
    """The results of a search."""

    sightings: list[Sighting] = field(default_factory=list)
    seen: set[Pattern] = field(default_factory=set)  # those of `needs` and `unless`
    first_failed_rank: int | None = None  # according to torch elastic's summary
    num_logs: int = 0
    ends_at_begin: Evidence | None = None  # the line, if the last log ends where training begins
    num_progress: Counter[str] = field(default_factory=Counter)  # signs since the last trouble
    num_signs: Counter[str] = field(default_factory=Counter)  # of progress since the first warning
    num_after: Counter[str] = field(default_factory=Counter)  # lines after the last of `at_end`

    def ends_with_it(self, log: Log) -> bool:
        """Return whether hardly a line follows the last one in `log` that counts at its end."""
        return self.num_after[log.name] <= MOST_AFTER


class Search:
    """Searches logs for lines that `rules` match."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.found = Found()
        self._rules = {pattern: rule for rule in rules for pattern in rule.match}
        self._benign = {pattern for pattern, rule in self._rules.items() if rule.role == "benign"}
        self._order = {pattern: number for number, pattern in enumerate(self._rules)}
        self._conditions = {pattern for rule in rules for pattern in (*rule.needs, *rule.unless)}
        self._prefilter = Prefilter([*self._rules, *self._conditions])
        self._num_seen: Counter[Rule] = Counter()
        self._has_warned = False  # the log being read

    def read(self, log: Log, number: int) -> None:
        """Search one more log. Raises UserError if it cannot be read."""
        self._num_seen.clear()
        self._has_warned = False
        self.found.num_logs += 1
        for index, block in enumerate(blocks(log)):
            self._search(log, (number, index), Segments(block))

    def _search(self, log: Log, place: tuple[int, int], segments: Segments) -> None:
        candidates: Candidates = dict(self._prefilter.candidates(segments.lower))
        stacks = tracebacks(segments)
        raised = {stack.exception.start: stack for stack in stacks if stack.exception is not None}
        owners = {line.start: stack for stack in stacks for line in stack.rest} | raised
        masked = self._covered(segments, stacks, candidates)
        masked |= {start for stack in stacks for start in stack.not_evidence}
        masked |= lines_of_own_report(segments)
        last = counted = 0
        ending: Segment | None = None
        for start in sorted((candidates.keys() | raised.keys()) - masked):
            segment, patterns = self._told(segments, start, raised, candidates)
            rules = self._matched(segment, patterns - self._benign)
            if start in raised and not raised[start].is_wrapper:
                rules[RAISED] = {}
            if self._matched(segment, patterns & self._benign):
                rules = {rule: groups for rule, groups in rules.items() if rule.at_end}
            if not rules:
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
            if any(rule.at_end for rule in rules):
                ending = segment
            else:
                last = segment.end
        self._count_signs(log, segments, counted, len(segments.lower))
        before = 0 if ending else self.found.num_after[log.name]
        self.found.num_after[log.name] = before + num_lines_after(segments, ending)
        self._look_around(log, segments, last)

    def _count_signs(self, log: Log, segments: Segments, start: int, end: int) -> int:
        """Count signs of progress from `start` to `end`, once there was a warning; return `end`."""
        if self._has_warned:
            self.found.num_signs[log.name] += _num_signs(segments.lower, start, end)
        return end

    def _look_around(self, log: Log, segments: Segments, last: int) -> None:
        """Note the rank that failed first, and the progress after the last trouble, at `last`."""
        found, begin = self.found, last_begin(segments)
        found.ends_at_begin = None
        if begin is not None:
            at = segments.line_of(begin)
            found.ends_at_begin = Evidence(log.name, at, begin.raw.strip())
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
        """Return a line, rejoined if its message was wrapped, and the patterns it may match."""
        segment, patterns = segments.at(start), candidates.get(start, set())
        message = raised[start].told if start in raised else None
        if message is None:
            return segment, patterns
        is_broken = message is not segment
        below: set[Pattern] = set()
        if not is_broken and not self._matched(segment, patterns):
            message = _with_what_is_below(segments, segment)
            below = _told_below(segments, segment, candidates)
        if message is segment:
            return segment, patterns
        text = message.raw.lower().encode()
        known = (*self._rules, *self._conditions)
        possible = patterns | {pattern for pattern in known if holds(text, pattern.texts)} - below
        if is_broken or self._matched(message, possible):
            return message, possible
        return segment, patterns

    def _matched(self, segment: Segment, patterns: Iterable[Pattern]) -> dict[Rule, Groups]:
        """Return the rules whose patterns match, with or without the line's prefixes."""
        groups_by_rule: dict[Rule, Groups] = {}
        for pattern in sorted(patterns, key=lambda known: self._order.get(known, -1)):
            match = None if pattern in self.found.seen else pattern.search(segment)
            if match is None:
                continue
            if pattern in self._conditions:
                self.found.seen.add(pattern)
            else:  # each of a rule's expressions may add groups
                groups = groups_by_rule.setdefault(self._rules[pattern], {})
                captured = {name: text for name, text in match.groupdict().items() if text}
                groups.update(match.groupdict() | groups | captured)
        return groups_by_rule

    def _covered(
        self, segments: Segments, stacks: list[Traceback], candidates: Candidates
    ) -> set[int]:
        """Return the starts of exceptions covered by a benign line above, or by a covered cause."""
        masked: set[int] = set()
        is_covered = is_chained = False
        for stack in stacks:
            above = [stack.header, *segments.before(stack.header, 1)]
            is_covered = (
                stack.is_ignored
                or (is_covered and is_chained)
                or any(
                    rule.covers_traceback
                    for segment in above
                    for rule in self._matched(
                        segment, candidates.get(segment.start, set()) & self._benign
                    )
                )
            )
            is_chained = bool(stack.next_is)
            if is_covered and stack.exception is not None:
                masked |= {segment.start for segment in (stack.exception, *stack.rest)}
        return masked


def _with_what_is_below(segments: Segments, line: Segment) -> Segment:
    """Return an exception's line, joined with the next if it was wrapped: none nearby is longer."""
    below = list(segments.after(line, 1))
    around = [*segments.before(line, 3), *below]
    if len(line.raw) < _NARROWEST or any(len(segment.raw) > len(line.raw) for segment in around):
        return line
    rest = "".join(segment.raw for segment in below if not segment.stripped.num_prefixes)
    return Segment(line.start, line.end, line.raw + rest) if rest else line


def _told_below(segments: Segments, line: Segment, candidates: Candidates) -> set[Pattern]:
    """Return the patterns that the next line matches alone, as a launcher's, not a continuation."""
    below = next(segments.after(line, 1), None)
    possible = candidates.get(below.start, set()) if below is not None else set()
    return {pattern for pattern in possible if below is not None and pattern.search(below)}


def _num_signs(text: bytes, start: int, end: int | None = None) -> int:
    """Return the number of lines that show progress, without a tracker's summary after a run."""
    signs = islice(_PROGRESS.finditer(text, start, len(text) if end is None else end), _MUCH)
    before = (text[text.rfind(b"\n", 0, match.start()) + 1 : match.start()] for match in signs)
    return sum(b"wandb:" not in line for line in before)
