"""Programs of the clone, each a fork of a process that has imported what they need.

A fork has an environment, output and an exit code of its own; it saves the time that every
`python -m` takes to import the same modules.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rundir.paths import ROOT

LAUNCHER = (
    *("launch.run.launched", "launch.commands.cli", "launch.commands.dry_run", "launch.live.stop"),
    *("launch.plan.planning", "launch.checks.preflight", "diagnostics.probes.rung", "pynvml"),
)
PREPARER = (*LAUNCHER, "train.prepare", "train.batches.feed", "train.batches.course")

_SERVER = """
import json, os, runpy, sys, tempfile

def become(asked):
    for number, path in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(path, os.O_RDWR), number)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    sys.argv = [asked["module"], *asked["args"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)

for name in sys.argv[1:]:
    __import__(name)
for line in sys.stdin:
    if (pid := os.fork()) == 0:
        become(json.loads(line))
        sys.exit()
    os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@functools.cache
def _server(modules: tuple[str, ...], libraries: str) -> subprocess.Popen[str]:
    """Start the process that forks; it ends with this one, whose pipe it reads."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVER, *modules],
        env={"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": libraries},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def run_module(
    module: str,
    *args: str,
    env: Mapping[str, str],
    cwd: Path = ROOT,
    modules: tuple[str, ...] = LAUNCHER,
    is_forked: bool | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python -P -m MODULE ARGS…` to its end, as a fork unless `env` adds modules to find.

    With `is_forked`, only its children are to find those.
    """
    if not (env["PYTHONPATH"] == str(ROOT) if is_forked is None else is_forked):
        command = [sys.executable, "-P", "-m", module, *args]
        nothing = subprocess.DEVNULL
        return subprocess.run(
            command, env=env, cwd=cwd, stdin=nothing, capture_output=True, text=True, check=False
        )
    server = _server(modules, env.get("LD_LIBRARY_PATH", ""))
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        asked = {"module": module, "args": args, "env": dict(env), "cwd": str(cwd)}
        server.stdin.write(json.dumps(asked | {"out": out.name, "err": err.name}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(args, code, out.read(), err.read())
