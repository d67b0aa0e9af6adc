"""Our modules as one classic script: browsers load no modules from files.

The modules keep to one form of import and export (monitor/pages/__init__.py), so that each becomes
a function that returns what it exports, called after those that it imports.
"""

from __future__ import annotations

import re
from pathlib import Path

from monitor.pages.page_files import IMPORT

_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


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
