"""The table of docs/serve.md, from the endpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from monitor.api.app import create_app
from monitor.api.server_settings import ServerSettings


def endpoints_table() -> str:
    """Return every endpoint with its parameters, as Markdown."""
    document = create_app(ServerSettings(runs_folder=Path("runs"), token="")).openapi()
    rows = ["| endpoint | answers | parameters |", "|---|---|---|"]
    for path, operations in document["paths"].items():
        shown = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), path)
        for method, operation in operations.items():
            answers = operation["description"].removesuffix(".")
            parts = [_parameter(item) for item in operation.get("parameters", ())]
            parts += _requests(document, operation)
            cell = "<br>".join(filter(None, parts)).replace("|", "\\|")
            rows.append(f"| `{method.upper()} {shown}` | {answers} | {cell} |")
    return "\n".join(rows)


def _parameter(item: dict[str, Any]) -> str:
    """Return a parameter of the query with its default and what it is; "" for one of the path."""
    if item["in"] == "path":
        return ""
    default = item["schema"].get("default")
    return f"`{item['name']}`{f' = {default}' if default else ''}: {item['description']}"


def _requests(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    """Return the requests that the body of a control may name."""
    if "requestBody" not in operation:
        return []
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
    choices = document["components"]["schemas"][name]["properties"]["request"]["enum"]
    return ['`{"request": …}`: ' + ", ".join(choices)]
