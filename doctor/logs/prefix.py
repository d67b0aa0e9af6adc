"""The prefixes that launchers, loggers and log collectors put before a line, and how to strip them.

Rank and time are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])")

_MOST_PREFIXES = 10
_DATE = r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _]"
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d| ?UTC)?"
_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"

# In this order. `rank` is a global rank; `local` may be a node's local rank, and has less weight.
_PREFIXES = tuple(
    re.compile(text)
    for text in (
        r"\[[Rr]ank:?\s?(?P<rank>\d+)\][:,]?(?:\s|(?=\[)|$)",  # torchrun, NCCL, Lightning
        r"(?:[0-9a-f]{8} )?\[rank=(?P<rank>\d+)\] \|\| ",  # Determined: the allocation before it
        r"\[PG [^\]]*Rank (?P<rank>\d+)\]\s?",
        r"\([Rr]ank:?\s?(?P<rank>\d+)\)[:,]?(?:\s|$)",
        r"(?:[Rr]ank|RANK)[ _-]?(?P<rank>\d+)\s?[:|](?:\s|$)",
        r"\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,[\w-]+)?\]<std(?:err|out)>:\s?",  # mpirun
        r"\[[a-zA-Z][\w-]*?:?(?P<local>\d+)\]:",  # torchrun --tee, or host:rank, without a space
        r"\[(?P<local>\d+)\]:?\s",
        r"\s{0,3}(?P<local>\d{1,5}):(?:\s|$)",  # srun --label
        r"[\w.-]+:\d+:\d+ \[(?P<local>\d+)\] (?=(?:[\w./-]+:\d+ )?NCCL )",
        r"\[?[IWEFD](?P<day>\d{3,4}) " + _CLOCK + r"(?:\s+\d+)?(?:\s+[\w./<>-]+:\d+)?\]\s?",  # glog
        r"\[[IWEF] [\w./-]+:\d+\]\s?",
        r"\[?" + _DATE + _CLOCK + _ZONE + r"\]?[:,]?(?:\s(?:-|\||>>))?(?:\s|(?=\[)|$)",
        r"(?P<month>[A-Z][a-z]{2})\s{1,2}(?P<monthday>\d{1,2}) "
        + _CLOCK
        + r" [\w.-]+ [\w./@()-]+(?:\[\d+\])?:\s",  # syslog, journald
        r"\[[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2})\s{1,2}(?P<monthday>\d{1,2}) "
        + _CLOCK
        + r" \d{4}\]\s",  # dmesg -T
        r"\[\s*\d+\.\d{6}\]\s",  # dmesg
        r"\[?" + _CLOCK + r"\]?(?:\s-)?\s",
        r"(?:stdout|stderr)(?: [FP]|:)\s",  # Kubernetes, subprocesses of tests
        r"[\w.-]+ \[std(?:err|out)\]\s",  # a benchmark runner's name for its job
        r"[A-Za-z0-9][\w.-]*/\d+ (?=\[[a-z]+\d+\]:|[IWEF]\d{4} )",  # torchx: role and replica
        r"\[(?:pod|task|worker)[/-][\w./-]+\]\s",  # kubectl logs --prefix
        r"[a-z][\w.-]*\d\s+\|\s",  # docker compose, and hosts as some collectors print them
        r"\((?:\w+ )?pid=\d+(?:, ip=[\d.]+)?\)\s",  # Ray
        r"\([\w.-]+, (?:rank=\d+, )?pid=\d+(?:, ip=[\d.]+)?\)\s",  # SkyPilot: the node's rank
        r"\[" + _LEVEL + r"\|[\w.]+:\d+\]\s(?:>>\s)?",  # transformers
        _LEVEL + r"\s+\|\s(?:[\w.<>-]+:[\w.<>-]+:\d+ - )?",  # loguru
        r"\[?" + _LEVEL + r"\]?(?::[\w.]+:|:|\s-|\s)\s?",
        r"\s*" + _LEVEL + r"\s+(?=\S)",  # rich
        r"\[[\w.]+:\d+:\w+\]\s",  # DeepSpeed
        r"(?:-\s)?[a-z_][\w]*(?:\.\w+)+:?\s(?:-\s)?(?=\[?" + _LEVEL + r")",  # a logger's name
        r"[\w.]+ - " + _LEVEL + r" - ",
        r"\[\w+(?:\.\w+)*\](?=\[" + _LEVEL + r"\])",  # hydra
        r"\[" + _LEVEL + r"\]\s(?:-\s)?",
        r"(?:[a-z][a-z0-9-]*\d(?:\.[a-z0-9.-]+)?|\d{1,3}(?:\.\d{1,3}){3}):\s",  # pdsh: the host
    )
)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


@dataclass(frozen=True, slots=True)
class Time:
    """The time a line was written, in seconds; each `kind` of stamp has its own epoch."""

    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stripped:
    """A line without its prefixes."""

    text: str
    rank: int | None = None
    time: Time | None = None
    num_prefixes: int = 0


def strip(line: str) -> Stripped:
    """Strip all prefixes from `line`; a global rank beats a local one, and the last time wins.

    One space after a prefix goes with it; the indentation of a traceback is kept.
    """
    rank: int | None = None
    local: int | None = None
    time: Time | None = None
    position = num_prefixes = 0
    while num_prefixes < _MOST_PREFIXES:
        prefix = next((m for p in _PREFIXES if (m := p.match(line, position))), None)
        if prefix is None or prefix.end() == position:
            break
        num_prefixes += 1
        position, groups = prefix.end(), prefix.groupdict()
        rank = int(groups["rank"]) if groups.get("rank") else rank
        local = int(groups["local"]) if groups.get("local") else local
        time = _time(groups) or time
    return Stripped(line[position:], local if rank is None else rank, time, num_prefixes)


def _time(groups: dict[str, str | None]) -> Time | None:
    """Parse the time of a stamp; only order matters, so every month is taken as 31 days."""
    clock = groups.get("clock")
    if not clock:
        return None
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    of_day = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    if date := groups.get("date"):
        year, month, day = (int(part) for part in re.split("[-/]", date))
        return Time("date", ((year * 12 + month) * 31 + day) * 86400 + of_day)
    if of_year := groups.get("day"):
        return Time("glog", (int(of_year[:-2]) * 31 + int(of_year[-2:])) * 86400 + of_day)
    if (name := groups.get("month")) and name in _MONTHS:
        days = _MONTHS.index(name) // 3 * 31 + int(groups["monthday"] or 0)
        return Time("syslog", days * 86400 + of_day)
    return None
