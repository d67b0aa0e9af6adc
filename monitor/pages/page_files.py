"""Files that the pages are made of: templates, our CSS and modules, uPlot's where it lies."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import jinja2

from monitor.http.json_api import NotFoundError

HERE = Path(__file__).parent
STATIC = HERE / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# As the pages name them, and as the package uplot-python does.
CHART_FILES = {"uPlot.js": "uPlot.iife.js", "uPlot.css": "uPlot.min.css"}
PACKAGE = "uplot-python"
# The one form of import that our modules keep to: names, and the module.
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+)\.js";$', re.MULTILINE)


@cache
def templates() -> jinja2.Environment:
    """Return the templates; all that they print is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(name: str, **values: object) -> str:
    """Return the HTML of a page."""
    return templates().get_template(f"{name}.html").render(**values)


@cache
def modules_of(entry: str) -> list[str]:
    """Return the module `entry` and all that it imports, as a page is to ask for all at once."""
    modules, left = [entry], [entry]
    while left:
        text = (STATIC / f"{left.pop()}.js").read_text(encoding="utf-8")
        new = [name for _, name in IMPORT.findall(text) if name not in modules]
        modules += dict.fromkeys(new)
        left += dict.fromkeys(new)
    return modules


def static(name: str) -> Path:
    """Return the path of a file of ours. Raises NotFoundError."""
    path = STATIC / name
    if "/" in name or path.suffix not in TYPES or not path.is_file():
        raise NotFoundError(f"there is no file static/{name}", "static/app.css")
    return path


def chart_file(name: str) -> Path:
    """Return the path of a file of uPlot, in the installed package. Raises NotFoundError.

    The package itself is not imported: it would load IPython.
    """
    spec = importlib.util.find_spec("uplot")
    if spec is None or spec.origin is None:
        raise NotFoundError(
            f"the charts need the package {PACKAGE}, which is not installed",
            f"pip install {PACKAGE}",
        )
    path = Path(spec.origin).parent / "static" / CHART_FILES.get(name, "-")
    if not path.is_file():
        raise NotFoundError(f"{PACKAGE} has no {name}", f"pip install {PACKAGE}==1.1.1")
    return path
