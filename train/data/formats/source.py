"""One file of rows, its compression, and the errors about the file as a whole."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rundir.errors import ExitCode, UserError

Compression = Literal["", "gzip", "zstd"]

COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
COMPRESSION_MAGICS: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PRINTED_BY = {"": "cat", "gzip": "zcat", "zstd": "zstdcat"}
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Source:
    """One file of rows; `format` is the name of one of train/data/formats/known.py."""

    path: Path
    format: str
    compression: Compression = ""

    @property
    def name(self) -> str:
        """The format and compression, for people to read."""
        return " ".join(filter(None, (self.format, self.compression)))

    @property
    def printed_by(self) -> str:
        """The command that prints the text of the file."""
        return f"{_PRINTED_BY[self.compression]} {shlex.quote(str(self.path))}"

    def decompressed(self, raw: Any) -> Any:
        """Return the open file `raw` without its compression."""
        import pyarrow as pa

        if not self.compression:
            return io.BufferedReader(raw, _CHUNK_BYTES)
        # The descriptor remains that of `raw`, so its position shows how far reading has come.
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), self.compression)
        return io.BufferedReader(_Decompressed(stream), _CHUNK_BYTES)


class _Decompressed(io.RawIOBase):
    """An Arrow stream with the interface that Python's buffered reader needs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, into: Any) -> int:
        """Fill `into` and return the number of bytes; 0 at the end."""
        data = self._stream.read(len(into))
        into[: len(data)] = data
        return len(data)


def wrong(path: Path, what: str, do: str) -> UserError:
    """Return the error for data that cannot be used."""
    return UserError(f"the data {path} {what}", do=do, code=ExitCode.DATA)


@contextmanager
def naming_damage(source: Source) -> Iterator[None]:
    """Turn errors about the bytes of a file into UserError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise wrong(
            source.path, f"is damaged: {error}", "fetch it again from its source"
        ) from error
