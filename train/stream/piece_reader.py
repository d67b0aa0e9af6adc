"""The reader of some rows of some pieces; it skips the rest of their files where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rundir.errors import ExitCode, UserError
from train.data.formats.format import Cursor, Numbered
from train.data.formats.known import format_of
from train.data.formats.source import Source, naming_damage
from train.stream.pieces import StreamFile


class PieceReader:
    """Reads pieces of the files, and reports what has changed since their rows were counted."""

    def __init__(self, files: Sequence[StreamFile], say: Callable[[str], None]) -> None:
        self._files, self._say = files, say
        self._has_grown: set[int] = set()
        # The one that continues in the next window is kept; it may have been read for hours.
        self._open: dict[bool, tuple[tuple[int, int], Cursor]] = {}

    def source(self, file: int) -> Source:
        """Return a file, by its index among all."""
        return self._files[file].source

    def rows(
        self, pieces: np.ndarray, wanted: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, Numbered]]:
        """Yield, for pieces in any order, the index of the piece and its `wanted` rows, ascending.

        Raises UserError for a file that has changed.
        """
        sources = [self.source(int(piece["file"])) for piece in pieces]
        follows = [format_of(source).is_read_in_order(source) for source in sources]

        def turn(at: int) -> tuple[int, ...]:
            """Return a sort key: plain files from their beginning, others in the epoch's order."""
            piece = pieces[at]
            return (1, at) if follows[at] else (0, int(piece["file"]), int(piece["start"]))

        for at in sorted((at for at in range(len(pieces)) if len(wanted[at])), key=turn):
            yield at, self._piece_rows(pieces[at], wanted[at], follows=follows[at])

    def close(self) -> None:
        """Close all open files."""
        for _, cursor in self._open.values():
            cursor.close()
        self._open.clear()

    def _piece_rows(self, piece: np.ndarray, wanted: np.ndarray, *, follows: bool) -> Numbered:
        at = int(piece["file"])
        file = self._files[at]
        self._check(at, file)
        with naming_damage(file.source):
            key = at, int(piece["group"]) if follows else 0
            opened = self._open.get(follows)
            if opened is None or opened[0] != key or not opened[1].can_go_to(int(piece["start"])):
                if opened is not None:
                    opened[1].close()
                cursor = format_of(file.source).cursor(file.source, int(piece["start"]))
                opened = self._open[follows] = key, cursor
            rows = opened[1].take(piece, wanted)
        if rows is None:
            raise _changed(file, "has fewer rows than were counted")
        return rows

    def _check(self, at: int, file: StreamFile) -> None:
        try:
            now = StreamFile.of(file.source)
        except OSError as error:
            raise _changed(file, f"can no longer be read ({error.strerror})") from error
        if now == file:
            return
        if now.size_bytes < file.size_bytes:
            raise _changed(file, f"has {now.size_bytes:,} bytes, it had {file.size_bytes:,}")
        if now.size_bytes == file.size_bytes or now.inode != file.inode:
            raise _changed(file, "was written anew")
        if at not in self._has_grown:
            self._has_grown.add(at)
            more = now.size_bytes - file.size_bytes
            self._say(f"{file.source.path} has grown by {more:,} bytes: they are not trained on")


def _changed(file: StreamFile, what: str) -> UserError:
    return UserError(
        f"the data have changed since their rows were counted: {file.source.path} {what}",
        do="bring back the file as it was, and --resume RUN; or begin a new run",
        code=ExitCode.DATA,
    )
