"""axe-core, of npm, on every page, light and dark: no serious and no critical fault."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monitor.report.write import report_html
from rundir.paths import RunDir
from tests.inbox.serving import serving
from tests.monitor.browsing import TOKEN, opened, server, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

AXE = "axe-core@4.14.1"
FOUND = """() => axe.run(document, {resultTypes: ['violations']}).then((told) => told.violations
  .filter((one) => ['serious', 'critical'].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(' ')).join('; ')}`))"""
CHART, ROW = "document.querySelector('canvas') !== null", "document.querySelector('{}') !== null"


def axe_source(folder: Path) -> str:
    """Return axe-core, by npm; skips the test where it cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here, which fetches axe-core: apt-get install npm")
    fetched = subprocess.run(
        ["npm", "pack", AXE], cwd=folder, capture_output=True, text=True, check=False
    )
    if fetched.returncode != 0:
        pytest.skip(f"npm does not fetch axe-core: {fetched.stderr[-200:]}")
    packed = next(folder.glob("axe-core-*.tgz"))
    shutil.unpack_archive(packed, folder, filter="data")
    return (folder / "package/axe.min.js").read_text()


@pytest.fixture
def reported(demo: RunDir, tmp_path: Path) -> Path:
    """Return the report of a run that has failed; it is made before there is a browser."""
    told = json.loads(demo.status.read_text()) | {"exit_code": 12, "phase": "failed"}
    demo.status.write_text(json.dumps(told | {"error": "rank 3 waits in all_reduce"}))
    incident = demo.incidents / "incident-attempt0"
    incident.mkdir()
    (incident / "verdict.md").write_text("# run: hang\n\n**rank 3 hangs**\n\n→ ./airlock run 32b\n")
    file = tmp_path / "report.html"
    file.write_text(report_html(demo))
    return file


def test_axe_finds_no_serious_fault_on_any_page(
    reported: Path, chromium: Any, demo: RunDir, environ: dict[str, str], tmp_path: Path
) -> None:
    source = axe_source(tmp_path)
    runs = [path.name for path in demo.path.parent.iterdir() if not path.is_symlink()]
    found = {}
    with serving(tmp_path / "box", environ) as inbox:
        inbox.plan("good.json")
        inbox.drop("bad.json", "no training data")
        inbox.wait_for(good="done", bad="failed")
        with server(environ, "--inbox", str(inbox.layout.path)) as base:
            report = reported.as_uri()
            pages = {
                base: ROW.format("tr[data-run]"),
                f"{base}run": f"{CHART} && {ROW.format('.verdict')} && {ROW.format('.line')}",
                f"{base}evolution": f"{CHART} && {ROW.format('.example')}",
                f"{base}config": ROW.format("[data-id=config-rows] tr"),
                f"{base}compare?runs={','.join(runs)}": f"{CHART} && {ROW.format('.legend li')}",
                f"{base}compare": ROW.format(".empty"),
                f"{base}inbox": ROW.format("section[aria-label=Done]"),
                f"{base}run?run=nothing": ROW.format("main h1.hide"),
                f"{report}#run": CHART,
                f"{report}#evolution": ROW.format(".example"),
                f"{report}#config": ROW.format("[data-id=config-rows] tr"),
            }
            for scheme in ("light", "dark"):
                for url, is_there in pages.items():
                    page, _ = opened(chromium, color_scheme=scheme)
                    page.goto(url if url.startswith("file") else f"{url}#token={TOKEN}")
                    until(page, is_there)
                    page.wait_for_timeout(500)  # until colours have come to rest
                    page.evaluate(source)
                    if faults := page.evaluate(FOUND):
                        found[f"{url} {scheme}"] = faults
                    page.context.close()
    assert found == {}
