"""Files as users have them: compressed, from a spreadsheet or Windows, damaged, of another kind."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from typing import Any

from tests.train.forms.form import CHAT, PAIR, Form, answer, text, user

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
    Form(name="CSV", of="files", file="a.csv", rows=_CSV, trained=PAIR),
    Form(
        name="CSV with semicolons",
        of="files",
        file="a.csv",
        rows=_CSV.replace(",", ";"),
        trained=PAIR,
    ),
    Form(
        name="CSV with a byte-order mark",
        of="files",
        file="a.csv",
        rows="\ufeff" + _CSV,
        trained=PAIR,
    ),
    Form(
        name="CSV with a label",
        of="files",
        file="a.csv",
        rows="prompt,completion,label\n2 + 5,7,True\n2 + 5,8,False\n",
        error="is a good or a bad answer, as its `label` says",
        then=PAIR,
    ),
    Form(
        name="CSV with a column twice",
        of="files",
        file="a b.csv",
        rows='prompt,"re,marks",response,response\n2 + 5,,7,8\n',
        error="has a column `response` more than once: columns 3 and 4",
        then=PAIR,
    ),
    Form(
        name="TSV with a column twice",
        of="files",
        file="a.tsv",
        rows="prompt\tprompt\tresponse\n2 + 5\t3\t7\n",
        error="has a column `prompt` more than once: columns 1 and 2",
        then=PAIR,
    ),
    Form(
        name="CSV with columns without a name",
        of="files",
        file="a.csv",
        rows="prompt,response,,\n2 + 5,7,,\n",
        trained=PAIR,
    ),
    Form(name="TSV", of="files", file="a.tsv", rows=_CSV.replace(",", "\t"), trained=PAIR),
    Form(
        name="UTF-16 CSV",
        of="files",
        file="a b.csv",
        rows=_CSV.encode("utf-16"),
        error="is UTF-16 text",
        then=PAIR,
    ),
    Form(
        name="UTF-16 JSON lines",
        of="files",
        rows=_ROW.encode("utf-16"),
        error="is UTF-16 text",
        then=PAIR,
    ),
    Form(
        name="Latin-1",
        of="files",
        rows='{"prompt": "größe", "response": "7"}\n'.encode("latin-1") + _ROW.encode(),
        error="is not UTF-8: it has the byte 0xf6",
        then=[user("größe") + answer("7"), *PAIR],
    ),
    Form(
        name="gzip", of="files", file="a.jsonl.gz", rows=gzip.compress(_ROW.encode()), trained=PAIR
    ),
    Form(
        name="half a gzip file",
        of="files",
        file="a.jsonl.gz",
        rows=gzip.compress(_ROW.encode())[:-9],
        error="is damaged",
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
        name="lines of text",
        of="files",
        file="a.txt",
        rows="one\n\ntwo\n",
        trained=[text("one"), text("two")],
    ),
    Form(name="Windows' line ends", of="files", rows=_ROW.replace("\n", "\r\n"), trained=PAIR),
    Form(
        name="an array of plain values",
        of="files",
        rows="[1, 2]\n" + _ROW,
        error="is a list, not an object",
        then=PAIR,
    ),
    Form(
        name="a line that is not valid JSON",
        of="files",
        rows=_ROW + "{'prompt': 1}\n",
        error="is not valid JSON",
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
        name="rows in an object",
        of="files",
        file="a.json",
        rows=json.dumps({"data": _ROWS}, indent=2),
        trained=PAIR * 2,
    ),
    Form(
        name="rows in an object, a row a line",
        of="files",
        file="a.json",
        rows=f'{{"version": "2.0", "data": [{_ROW.strip()},\n{_ROW.strip()}\n]}}\n',
        trained=PAIR * 2,
    ),
    Form(
        name="rows in an object on one line",
        of="files",
        rows=json.dumps({"examples": _ROWS * 1000, "count": 2000}),
        trained=PAIR * 2000,
    ),
    Form(
        name="conversations in an object",
        of="files",
        file="a.json",
        rows=json.dumps({"info": {"by": ["a"]}, "train": [{"messages": CHAT}]}, indent=1),
        trained=PAIR,
    ),
    Form(
        name="an object with two lists of rows",
        of="files",
        file="a b.json",
        rows=json.dumps({"test's": _ROWS, "train": _ROWS}, indent=1),
        error="has rows in a list, and another list in `train`",
        then=PAIR * 2,
    ),
    Form(
        name="objects over several lines",
        of="files",
        file="a.json",
        rows="\n".join(json.dumps(row, indent=4) for row in _ROWS),
        trained=PAIR * 2,
    ),
    Form(
        name="objects over several lines, with lists of objects",
        of="files",
        rows=json.dumps({"spans": [{"end": 1}], **_ROWS[0]}, indent=1) * 2,
        trained=PAIR * 2,
        unused="spans",
    ),
    Form(
        name="one conversation over several lines",
        of="files",
        file="a.json",
        rows=json.dumps({"id": 1, "messages": CHAT}, indent=2),
        trained=PAIR,
        unused="id",
    ),
    Form(
        name="one conversation over several lines, in a column of another name",
        of="files",
        file="a.json",
        rows=json.dumps({"turns": CHAT}, indent=2),
        error="has none of the columns that are known",
    ),
    Form(
        name="a bad row of several lines",
        of="files",
        file="a b.json",
        rows=json.dumps({"data": [{"prompt": "2 + 5", "response": None}, *_ROWS]}, indent=1),
        error="json:3: the row has null in `response`, not text",
        then=PAIR * 2,
    ),
    Form(name="nothing", of="files", rows="", error="is empty"),
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
    Form(
        name="half a character",
        of="files",
        rows='{"prompt": "\\ud83d", "response": "7"}\n' + _ROW,
        error="has a lone surrogate (half of a character) in `prompt`",
        then=PAIR,
    ),
]
