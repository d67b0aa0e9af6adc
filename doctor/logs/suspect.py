"""A suspect: a sighting that may be the cause, with the rule that says so."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.logs.rules import Rule
from doctor.logs.sightings import Sighting

EXCEPTION = "python-exception"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A sighting with its rule; exceptions that no rule knows get a rule of their own."""

    sighting: Sighting
    rule: Rule
