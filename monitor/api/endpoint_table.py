"""`python -m monitor.api.endpoint_table`: write the table of docs/serve.md, from the routes."""

from __future__ import annotations

from pathlib import Path

from monitor.api.app import all_routes
from monitor.api.openapi import path_names, told_in
from monitor.api.server_settings import ServerSettings
from monitor.http.endpoint import Endpoint, Param
from rundir.docs import Tables, write


def endpoints_table() -> str:
    """Return every endpoint with its parameters, as Markdown."""
    rows = ["| endpoint | answers | parameters |", "|---|---|---|"]
    for endpoint in told_in(all_routes(ServerSettings(runs_folder=Path("runs"), token=""))):
        path = endpoint.path
        for name in path_names(path):
            path = path.replace(f"{{{name}}}", name.upper())
        rows.append(f"| `{endpoint.method} {path}` | {endpoint.summary} | {_params(endpoint)} |")
    return "\n".join(rows)


def _params(endpoint: Endpoint) -> str:
    parts = [f"`{param.name}`{_default(param)}: {param.meaning}" for param in endpoint.params]
    if endpoint.body is not None:
        choices = endpoint.body["properties"]["request"]["enum"]
        parts.append('`{"request": …}`: ' + ", ".join(choices))
    return "<br>".join(parts).replace("|", "\\|")


def _default(param: Param) -> str:
    return f" = {param.default}" if param.default not in (None, "", 0) else ""


TABLES: Tables = {"docs/serve.md": {"endpoints": endpoints_table}}


if __name__ == "__main__":
    write(TABLES)
