"""Files as users have them: compressed, from a spreadsheet or Windows, damaged, of another kind."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from typing import Any

from tests.train.forms.form import CHAT, PAIR, Form, answer, text, user

_ROW = json.dumps({"prompt": "2 + 5", "response": "7"}) + "\n"
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
