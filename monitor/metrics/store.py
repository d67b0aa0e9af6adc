"""The index of one run: a folder with a file for each column, which may be lost at any time.

It is a cache, made from the run's events. `state` says how many rows of each column count, with
their checksums, and how far the events were read. Columns are only ever added to, and `state` is
replaced after that: a process that is killed leaves rows that do not count and are written over,
and who reads beside a writer has the rows of the state that it has read. A table that loses rows is
written anew, to files of another number. An OSError means that this place takes no index.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rundir.atomic import write_bytes
from rundir.files.lock import lock

VERSION = 2  # of what is below; in the folder's name, so that two versions do not meet
X = ""  # the field of the column with steps, or times
VALUE_BYTES = 8


class BrokenError(Exception):
    """The index is damaged; it has to be made anew."""


class BusyError(Exception):
    """Another process is adding to the index just now."""


@dataclass(slots=True)
class EventsFile:
    """How far a file of events has been read; inode and first bytes tell whether it is the same."""

    inode: int
    head: str = ""
    offset: int = 0


@dataclass(slots=True)
class MetricTable:
    """The metrics of one name and key, as `train` or `gpu@0`: rows by step or by time."""

    number: int  # in the names of its files
    by: str
    events_file: str
    rows: int = 0
    last_x: float | None = None
    crcs: dict[str, int] = field(default_factory=dict)  # of each column, in the order of the files

    def file_name(self, column: str) -> str:
        """Return the name of the file of a column that the table has."""
        return f"{self.number}-{list(self.crcs).index(column)}"


@dataclass(slots=True)
class Resume:
    """Training went on after `step`: of which attempt, and of which run's checkpoint."""

    step: int
    attempt: int
    t: float
    run: str | None
    why: str


def _new_identity() -> str:
    return secrets.token_hex(8)


@dataclass(slots=True)
class IndexState:
    """All of an index but its columns."""

    identity: str = field(default_factory=_new_identity)  # another as soon as rows have gone
    num_numbered: int = 0  # tables, those that are gone included
    events_files: dict[str, EventsFile] = field(default_factory=dict)
    tables: dict[str, MetricTable] = field(default_factory=dict)
    resumes: list[Resume] = field(default_factory=list)

    def lose_rows(self) -> None:
        """Note that rows which were told of are gone."""
        self.identity = _new_identity()

    def new_number(self) -> int:
        """Return the number of a table that is begun."""
        self.num_numbered += 1
        return self.num_numbered


class Store:
    """The index in one folder. Nothing is kept open: it may be used by any thread and process."""

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        """With `most_bytes` all indexes beside it, with this one, take no more than about that."""
        self.folder = folder
        self.most_bytes = most_bytes

    def state(self) -> IndexState | None:
        """Return what is in the index; None if there is none yet. Raises BrokenError."""
        try:
            crc, _, data = (self.folder / "state").read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        if crc != b"%08x" % zlib.crc32(data):
            raise BrokenError("its state is damaged")
        state = json.loads(data)
        files = {name: EventsFile(**file) for name, file in state["events_files"].items()}
        tables = {name: MetricTable(**table) for name, table in state["tables"].items()}
        resumes = [Resume(**resume) for resume in state["resumes"]]
        return IndexState(state["identity"], state["num_numbered"], files, tables, resumes)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only one that adds to the index. Raises BusyError if another process is."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.most_bytes is not None:
            files = self.folder.parent.rglob("*")
            if sum(file.stat().st_size for file in files) >= self.most_bytes:
                raise OSError(f"the indexes in memory have {self.most_bytes >> 20} MiB")
        with (self.folder / "lock").open("ab") as file:
            if not lock(file.fileno()):
                raise BusyError
            yield

    def append(self, table: MetricTable, column: str, data: bytes) -> None:
        """Add to the values of a column; they count when the state is replaced."""
        rows = table.rows if column in table.crcs else 0
        crc = table.crcs.setdefault(column, 0)
        with (self.folder / table.file_name(column)).open("ab") as file:
            file.truncate(rows * VALUE_BYTES)
            file.write(data)
        table.crcs[column] = zlib.crc32(data, crc)

    def values(self, table: MetricTable, column: str) -> bytes:
        """Return the doubles of a column that the table has. Raises BrokenError."""
        try:
            with (self.folder / table.file_name(column)).open("rb") as file:
                data = file.read(table.rows * VALUE_BYTES)
        except FileNotFoundError as error:
            raise BrokenError(f"{error.filename} is gone") from error
        if zlib.crc32(data) != table.crcs[column]:
            raise BrokenError(f"{file.name} is damaged")
        return data

    def replace_state(self, state: IndexState) -> None:
        """Have what was added count."""
        data = json.dumps(asdict(state)).encode()
        checked = b"%08x\n" % zlib.crc32(data) + data
        # Without waiting for the disk: what a power cut leaves is found out by the checksums.
        write_bytes(self.folder / "state", checked, durable=False)

    def remove_unused(self, state: IndexState) -> None:
        """Remove files of tables that are gone, and what killed processes have left."""
        numbers = {str(table.number) for table in state.tables.values()}
        for path in self.folder.iterdir():
            if path.name not in ("state", "lock") and path.name.partition("-")[0] not in numbers:
                path.unlink(missing_ok=True)
