"""Files that are no text, or too long for files.toml: damaged, of another kind."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from tests.train.forms.form import CHAT, PAIR, Form

_ROW = json.dumps({"prompt": "2 + 5", "response": "7"}) + "\n"
_ROWS = [json.loads(_ROW)] * 2
_CSV = "prompt,response\n2 + 5,7\n"


def _zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("inside.jsonl", _ROW)
    return made.getvalue()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), made)
    return made.getvalue()


FORMS = [
    Form(
        name="UTF-16 CSV",
        of="files",
        file="a b.csv",
        rows=_CSV.encode("utf-16"),
        error="is UTF-16 text",
        then=PAIR,
    ),
    Form(
        name="Latin-1",
        of="files",
        rows='{"prompt": "größe", "response": "7"}\n'.encode("latin-1") + _ROW.encode(),
        error="is not UTF-8: it has the byte 0xf6",
        then=[PAIR[0].replace("2 + 5", "größe"), *PAIR],
    ),
    Form(
        name="a zip archive",
        of="files",
        file="a.zip",
        rows=_zipped(),
        error="is a zip archive",
        then=PAIR,
    ),
    Form(
        name="a line of a megabyte that is not valid JSON",
        of="files",
        rows=_ROW + "x" * 1_000_000 + "\n",
        error="is not valid JSON",
        then=PAIR,
    ),
    Form(
        name="rows in an object on one line",
        of="files",
        rows=json.dumps({"examples": _ROWS * 1000, "count": 2000}),
        trained=PAIR * 2000,
    ),
    Form(
        name="Parquet, with nulls where others have fields",
        of="files",
        file="a.parquet",
        rows=_parquet(
            [
                {"messages": [CHAT[0], {**CHAT[1], "weight": 1.0, "name": None}]},
                {"messages": [{**CHAT[0], "weight": None}, CHAT[1]]},
            ]
        ),
        trained=PAIR * 2,
    ),
    Form(
        name="Parquet, whole numbers",
        of="files",
        file="a.parquet",
        rows=_parquet([{"question": "2 + 5", "answer": 7}]),
        trained=PAIR,
    ),
]
