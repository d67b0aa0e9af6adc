"""The index of one run: a SQLite database of columns in chunks, which may be lost at any time.

It is a cache. Everything is made from the run's events, in transactions that hold the rows and the
place in the file up to which it was read: a process that is killed leaves the last whole one, and
two servers may use one index at once. Whatever is wrong with it is one of two errors: `BrokenError`
means that it has to be made anew, `UnusableError` that this place takes no index.
"""

from __future__ import annotations

import array
import contextlib
import os
import secrets
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

VERSION = 1  # of the tables below; in the file's name, so that two versions do not meet
CHUNK_ROWS = 1024
X = ""  # the field of the column with steps, or times
MOST_BYTES_IN_MEMORY = 32 << 20
_PAGE_BYTES = 4096
_LONGEST_WAIT_S = 5.0  # for another process to finish the tables that it makes
_TABLES = """
create table meta(key text primary key, value);
create table source(name text primary key, inode integer, head blob, offset integer);
create table part(id integer primary key, name text unique, by text, source text, rows integer);
create table chunk(part integer, field text, number integer, crc integer, data blob);
create unique index chunks on chunk(part, field, number);
create table resume(step real, attempt integer, t real, run text, why text);
"""

Column: TypeAlias = "array.array[float]"


class BrokenError(Exception):
    """The index is damaged; it has to be made anew."""


class UnusableError(Exception):
    """No index can be kept there: the disk is full, or may not be written."""


class BusyError(Exception):
    """Another process is adding to the index just now."""


@dataclass(slots=True)
class Source:
    """How far a file of events has been read; inode and first bytes tell whether it is the same."""

    name: str
    inode: int
    head: bytes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PartRow:
    """The metrics of one name and key, as `train` or `gpu@0`: rows by step or by time."""

    id: int
    name: str
    by: str
    source: str
    rows: int


class Store:
    """One open index; to be used by one thread at a time."""

    def __init__(self, path: Path | None) -> None:
        """Open or make the index `path`, or one in memory. Raises the errors above."""
        self.path = path
        self.inode = 0
        with errors():
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(
                path or ":memory:",
                timeout=_LONGEST_WAIT_S,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with errors():
                self._begin()
        except BaseException:
            self._db.close()
            raise
        if path is not None:
            with contextlib.suppress(OSError):
                self.inode = path.stat().st_ino

    def _begin(self) -> None:
        # What a kill leaves is whole without waiting for the disk; after a power cut the checksums
        # tell what is not.
        self._db.execute(f"pragma page_size = {_PAGE_BYTES}")
        self._db.execute("pragma synchronous = off")
        self._db.execute("pragma journal_size_limit = 1048576")
        if self.path is None:
            self._db.execute(f"pragma max_page_count = {MOST_BYTES_IN_MEMORY // _PAGE_BYTES}")
        else:
            self._db.execute("pragma journal_mode = wal")
        with self.writing(wait_s=_LONGEST_WAIT_S):
            if self._db.execute("pragma user_version").fetchone()[0] == 0:
                self._make()

    def _make(self) -> None:
        for statement in _TABLES.split(";"):
            self._db.execute(statement)
        self._db.execute("insert into meta values('identity', ?)", (secrets.token_hex(4),))
        self._db.execute("insert into meta values('cuts', 0)")
        self._db.execute(f"pragma user_version = {VERSION}")

    def is_current(self) -> bool:
        """Return whether the file that was opened is still the one of that name."""
        if self.path is None:
            return True
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    @contextmanager
    def writing(self, wait_s: float) -> Iterator[None]:
        """Do what follows whole or not at all. Raises BusyError if another process writes."""
        with errors():
            self._db.execute(f"pragma busy_timeout = {int(wait_s * 1000)}")
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # it may be undone already
                    self._db.execute("rollback")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the index in all that follows."""
        with errors():
            self._db.execute("begin")
            try:
                yield
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("rollback")

    def clear(self) -> None:
        """Forget everything: the run's folder is another one now."""
        for table in ("source", "part", "chunk", "resume"):
            self._db.execute(f"delete from {table}")  # noqa: S608 - our own names
        self._db.execute(
            "update meta set value = ? where key = 'identity'", (secrets.token_hex(4),)
        )

    def identity(self) -> str:
        """Return what changes as soon as rows that were told are no longer so."""
        values = dict(self._db.execute("select key, value from meta"))
        if values.keys() < {"identity", "cuts"}:
            raise BrokenError("it does not say which it is")
        return f"{values['identity']}-{values['cuts']}"

    def sources(self) -> dict[str, Source]:
        """Return the files that were read."""
        rows = self._db.execute("select name, inode, head, offset from source")
        return {row[0]: Source(*row) for row in rows}

    def put_source(self, source: Source) -> None:
        """Note how far a file has been read."""
        values = (source.name, source.inode, source.head, source.offset)
        self._db.execute("insert or replace into source values(?, ?, ?, ?)", values)

    def parts(self) -> dict[str, PartRow]:
        """Return all parts by name."""
        rows = self._db.execute("select id, name, by, source, rows from part order by id")
        return {row[1]: PartRow(*row) for row in rows}

    def put_part(self, name: str, by: str, source: str) -> PartRow:
        """Add a part without rows."""
        values = (name, by, source)
        self._db.execute("insert into part(name, by, source, rows) values(?, ?, ?, 0)", values)
        return self.parts()[name]

    def put_rows(self, part: int, rows: int) -> None:
        """Note how many rows a part has."""
        self._db.execute("update part set rows = ? where id = ?", (rows, part))

    def fields(self, part: int) -> list[str]:
        """Return the fields that a part has values of."""
        rows = self._db.execute("select distinct field from chunk where part = ?", (part,))
        return [row[0] for row in rows if row[0] != X]

    def put_chunk(self, part: int, number: int, columns: dict[str, Column]) -> None:
        """Write the rows of one chunk; `columns` has X and the fields."""
        rows = []
        for field, column in columns.items():
            data = column.tobytes()
            rows.append((part, field, number, zlib.crc32(data), data))
        self._db.executemany("insert or replace into chunk values(?, ?, ?, ?, ?)", rows)

    def chunks(self, part: int, field: str, first: int, last: int) -> dict[int, bytes]:
        """Return the data of the chunks from `first` to `last`. Raises BrokenError."""
        chunks_ = {}
        with errors():
            rows = self._db.execute(
                "select number, crc, data from chunk "
                "where part = ? and field = ? and number between ? and ?",
                (part, field, first, last),
            )
            for number, crc, data in rows:
                if not isinstance(data, bytes) or zlib.crc32(data) != crc:
                    raise BrokenError(f"chunk {number} of {field or 'the steps'} is damaged")
                chunks_[number] = data
        return chunks_

    def drop_chunks(self, part: int, first: int) -> None:
        """Remove the chunks from `first` on."""
        self._db.execute("delete from chunk where part = ? and number >= ?", (part, first))

    def count_cut(self) -> None:
        """Note that rows have gone."""
        self._db.execute("update meta set value = value + 1 where key = 'cuts'")

    def resumes(self) -> list[tuple[float, int, float, str | None, str]]:
        """Return step, attempt, time, the run that is gone on from, and why, in order of time."""
        return list(
            self._db.execute("select step, attempt, t, run, why from resume order by rowid")
        )

    def put_resume(self, step: float, attempt: int, t: float, run: str | None, why: str) -> None:
        """Note that training goes on from `step`."""
        values = (step, attempt, t, run, why)
        self._db.execute("insert into resume values(?, ?, ?, ?, ?)", values)

    def close(self) -> None:
        """Close it; what it is in the cache stays."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


def remove(path: Path) -> None:
    """Remove an index: its log first, so that a new one of the same name does not get that."""
    for name in (f"{path.name}-wal", f"{path.name}-shm", path.name):
        with contextlib.suppress(OSError):
            os.unlink(path.with_name(name))  # noqa: PTH108 - a name of our own


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_PLACE = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_NOLFS),
)


@contextmanager
def errors() -> Iterator[None]:
    """Turn what SQLite and the disk say into the errors of this module."""
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # without the details
        if code in _BUSY:
            raise BusyError(str(error)) from error
        if code in _NO_PLACE:
            raise UnusableError(str(error)) from error
        raise BrokenError(str(error)) from error
    except OSError as error:
        raise UnusableError(error.strerror or str(error)) from error
