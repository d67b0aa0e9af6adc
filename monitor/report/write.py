"""The report: templates, CSS, scripts, licences and answers put together as one HTML file.

Browsers load no modules from files, so ours become one classic script. They keep to one form of
import and export (monitor/pages/__init__.py): each becomes a function that returns what it exports,
called after those that it imports.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from markupsafe import Markup

from monitor.http.json_api import ApiError
from monitor.pages.page_files import HERE, IMPORT, PACKAGE, STATIC, chart_file, page
from monitor.report.report_answers import Answers, answers_of
from rundir.errors import UserError
from rundir.events import finite
from rundir.paths import RunDir

MOST_BYTES = 8 * 1000 * 1000
_STYLES = ("app.css", "run.css", "evolution.css")
_SNAPSHOT = re.compile(r"(?P<dataset>.+)/snapshot/(?P<step>\d+)")
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_NAMES = re.compile(r'\b(?:line|many)\("([a-z_.]+)"')  # as run_charts.js writes them


def report_html(run: RunDir, most_bytes: int = MOST_BYTES) -> str:
    """Return the report of a run. Raises UserError if it has too much for one file."""
    try:
        answers = finite(answers_of(run, series()))
    except ApiError as error:
        raise UserError(
            error.text, do=f"ls {shlex.quote(str(run.path))}   # what the run has ({error.hint})"
        ) from error
    left_out = 0
    while True:
        html = _page(run.run_id, answers, left_out)
        if len(html.encode()) <= most_bytes:
            return html
        left_out += _thin_out(run, answers)


def series() -> list[str]:
    """Return the names of the series that the charts show, of single ranks and GPUs as well."""
    names = dict.fromkeys(_NAMES.findall((STATIC / "run_charts.js").read_text(encoding="utf-8")))
    return [pattern for name in names for pattern in (name, f"{name}@*")]


def _thin_out(run: RunDir, answers: Answers) -> int:
    """Leave out every second snapshot of the data set with the most, or the logs but their ends.

    Returns how many snapshots. The first and the last of each are kept. Raises UserError.
    """
    by_set: dict[str, list[str]] = {}
    for key in answers:
        if match := _SNAPSHOT.fullmatch(key):
            by_set.setdefault(match["dataset"], []).append(key)
    keys = max(by_set.values(), key=len, default=[])
    if len(keys) > 2:  # noqa: PLR2004 - the first and the last
        gone = keys[1:-1:2]
        for key in gone:
            del answers[key]
        dataset = keys[0].rpartition("/snapshot/")[0]
        kept = {int(key.rpartition("/")[2]) for key in keys if key in answers}
        listed: Any = answers[f"{dataset}/snapshots"]
        listed["snapshots"] = [
            snapshot for snapshot in listed["snapshots"] if snapshot["step"] in kept
        ]
        return len(gone)
    logs = [log for key, log in answers.items() if "/logs" in key and len(log["lines"]) > 50]  # noqa: PLR2004
    if not logs:
        raise UserError(
            f"the answers of {run.run_id} alone are more than {MOST_BYTES // 10**6} MB",
            do=f"./airlock monitor --run {run.run_id}",
        )
    for log in logs:
        log["lines"] = log["lines"][-50:]
    return 0


def _page(run: str, answers: Answers, left_out: int) -> str:
    content = {"made_t": time.time(), "run": run, "left_out": left_out, "answers": answers}
    # Within a script element only these characters could end it, or begin a comment.
    data = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    styles = _read(chart_file("uPlot.css")) + "".join(
        _read(STATIC / name) for name in _STYLES if (STATIC / name).is_file()
    )
    scripts = {
        "theme": _read(STATIC / "theme.js"),
        "charts": _read(chart_file("uPlot.js")),
        "pages": bundled("report", STATIC),
    }
    assert "</style" not in styles, styles
    assert not any("</script" in script for script in scripts.values())
    allowed = " ".join(_hash(script) for script in scripts.values())
    return page(
        "report",
        page="report",
        run=run,
        policy=f"default-src 'none'; script-src {allowed}; style-src {_hash(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        styles=Markup(styles),  # noqa: S704 - our own and uPlot's files
        scripts={name: Markup(text) for name, text in scripts.items()},  # noqa: S704
        data=Markup(data),  # noqa: S704 - escaped above
        licences=licences(),
    )


def licences() -> list[tuple[str, str]]:
    """Return the licences of what others wrote in the report: the name, and the whole text."""
    head = _read(chart_file("uPlot.js"))[:2000]
    match = re.search(r"Copyright \(c\) .+", head)
    copyright_line = match[0].strip() if match else "Copyright (c) Leon Sorokin"
    # uPlot's files tell of its licence by name only; this is the text that the name means.
    mit = _read(HERE / "templates/mit_licence.txt")
    texts = [("uPlot", mit.format(copyright=copyright_line))]
    whose = f"{PACKAGE} {metadata.version(PACKAGE)}"
    files = [file for file in metadata.files(PACKAGE) or [] if "licenses" in file.parts]
    return texts + [(whose, _read(Path(str(file.locate())))) for file in files]


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def bundled(entry: str, folder: Path) -> str:
    """Return the script that runs the module `entry` of `folder`, with all that it imports.

    Raises ValueError for a module in another form.
    """
    order: list[str] = []
    texts: dict[str, str] = {}
    _visit(entry, folder, texts, order)
    parts = [_wrapped(name, texts[name]) for name in order]
    return "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"


def _visit(name: str, folder: Path, texts: dict[str, str], order: list[str]) -> None:
    if name in texts:
        return
    texts[name] = (folder / f"{name}.js").read_text(encoding="utf-8")
    for _, other in IMPORT.findall(texts[name]):
        _visit(other, folder, texts, order)
    order.append(name)


def _wrapped(name: str, text: str) -> str:
    names = _EXPORT.findall(text)
    text = IMPORT.sub(lambda match: _taken(match[1], match[2]), text)
    text = _EXPORT.sub("", text)
    if left := _LEFT.search(text):
        raise ValueError(f"{name}.js: a form of import or export that is not known: {left[0]}")
    given = f"return {{ {', '.join(names)} }};"
    return f"const {_variable(name)} = (() => {{\n{text}\n{given}\n}})();"


def _taken(names: str, module: str) -> str:
    listed = ", ".join(
        ": ".join(name.split(" as ")) for part in names.split(",") if (name := part.strip())
    )
    return f"const {{ {listed} }} = {_variable(module)};"


def _variable(name: str) -> str:
    return "module_" + name.replace("-", "_")
