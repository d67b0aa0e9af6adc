"""A run with a gigabyte of events: indexed beside the server, in little memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.monitor.metrics.event_files import WrittenRun
from tests.running import python

_GIB = 1 << 30
_NUM = 100_000
_PROGRAM = """
import json, sys, time
from pathlib import Path
import psutil
from monitor.metrics.index import Index
from monitor.metrics.metrics_query import MetricsQuestion
from rundir.paths import RunDir

index, run = Index(Path(sys.argv[2])), RunDir(Path(sys.argv[1]))
question = MetricsQuestion(series=("train.loss",), points=100)
seen, beside_bytes = [], 0
while True:
    told = index.metrics(run, question)
    seen.append(told["indexed"]["bytes"])
    for child in psutil.Process().children():
        try:
            beside_bytes = max(beside_bytes, child.memory_info().rss)
        except psutil.Error:
            pass
    if told["indexed"]["done"]:
        break
    time.sleep(0.2)
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
index.close()
print(json.dumps({"seen": seen, "peak_bytes": peak, "beside_bytes": beside_bytes, "told": told}))
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_gigabyte_of_events_is_indexed_in_little_memory(tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "runs")
    written.many(1, _NUM)
    line = {"v": 1, "t": 1.0, "mono": 1.0, "node": 0, "attempt": 0, "rank": 0, "pid": 1}
    text = json.dumps(line | {"kind": "log", "name": "line", "text": "x" * 400}).encode() + b"\n"
    file = written.run.event_file("rank0")
    while file.stat().st_size < _GIB:
        written.raw(text * 20_000)
    written.train(_NUM + 1, loss=-5.0)
    figures = json.loads(python(_PROGRAM, str(written.run.path), str(tmp_path / "index")))
    assert figures["told"]["indexed"]["of_bytes"] == file.stat().st_size > _GIB
    curve = figures["told"]["series"]["train.loss"]
    assert (curve["steps"][-1], curve["last"][-1]) == (_NUM + 1, -5.0)
    assert len(set(figures["seen"])) > 3
    assert figures["peak_bytes"] + figures["beside_bytes"] < 120e6
