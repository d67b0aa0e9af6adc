"""Arrow files, and the Arrow streams that `datasets` saves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from train.data.formats.batch_format import Batches, BatchFormat
from train.data.formats.source import Source


class Arrow(BatchFormat):
    """Arrow's own format, in memory as on disk; a stream begins otherwise than a file."""

    name, title, endings = "arrow", "Arrow", (".arrow",)
    magics = (b"ARROW1", b"\xff\xff\xff\xff")
    is_mapped = True

    def is_read_in_order(self, source: Source) -> bool:
        return False

    def groups(self, source: Source) -> Iterator[tuple[int, int]]:
        with ExitStack() as files:
            for batch in self.batches(source, files).batches:
                yield batch.num_rows, batch.nbytes

    def batches(self, source: Source, files: ExitStack, start: int | None = None) -> Batches:
        import pyarrow as pa

        mapped = files.enter_context(pa.memory_map(str(source.path)))
        try:
            file = pa.ipc.open_file(mapped)
            batches = (file.get_batch(i) for i in range(file.num_record_batches))
        except pa.ArrowInvalid:
            mapped.seek(0)
            batches = iter(pa.ipc.open_stream(mapped))
        return Batches(batches, 0, lambda _: int(mapped.tell()))
