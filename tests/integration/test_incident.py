"""The bug-report archive of a failed run: complete, small, and without secrets."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.running import Start, ended, finish, run_folder
from tests.scripts import JOIN, script

_TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"  # noqa: S105 - nobody's
_FAILS = f"""{JOIN}
print("fetching https://someone:p4ssw0rd-of-theirs@example.org/data", flush=True)
print("with " + os.environ["HF_TOKEN"] + " and " + os.environ["OTHER_SECRET"], flush=True)
for _ in range(40):
    os.write(1, b"a line of a long log, as they are printed by the thousand\\n" * 1000)
if rank == 1:
    raise ValueError("what is wrong")
dist.barrier()
"""


def test_a_failed_run_leaves_one_file_without_secrets(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    env = {
        "HF_TOKEN": _TOKEN,
        "OTHER_SECRET": "no-one-may-see-this",
        "https_proxy": "http://me:proxy-password@localhost:1",
    }
    path = script(tmp_path, _FAILS)
    with ended(airlock("run", path, "--api-key", "typed-by-hand-0123", env=env)) as process:
        code, out, err = finish(process)
    assert code == 10, out + err
    run = run_folder(environ)
    archive = run.incident_archive
    assert out.count(str(archive.relative_to(tmp_path))) == 1
    assert archive.stat().st_size < 5 << 20
    with zipfile.ZipFile(archive) as packed:
        assert packed.testzip() is None
        texts = {name: packed.read(name).decode() for name in packed.namelist()}
    names = {name.removeprefix(f"{run.run_id}/incident-attempt0/") for name in texts}
    assert names >= {
        "verdict.md",
        "config.toml",
        "command.txt",
        "environment.json",
        "environment.txt",
        "status.json",
        "logs/rank0.log",
        "logs/rank1.log",
        "events/launch.jsonl",
        "events/rank1.jsonl",
    }
    everything = "\n".join(texts.values())
    for secret in (_TOKEN, "no-one-may-see-this", "p4ssw0rd", "proxy-password", "typed-by-hand"):
        assert secret not in everything, [name for name in texts if secret in texts[name]]
    assert "[masked]" in everything
    verdict = texts[f"{run.run_id}/incident-attempt0/verdict.md"]
    for told in (
        "rank 1 raised ValueError: what is wrong",
        "## What ran",
        "| torch |",
        "## Host memory",
        "## Ranks",
        "`rank1.log`",
    ):
        assert told in verdict
    assert not list(run.incidents.glob("*.part"))


def test_a_run_that_is_done_leaves_none(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    code, out, err = finish(airlock("run", script(tmp_path, JOIN)))
    assert code == 0, out + err
    assert not list(run_folder(environ).incidents.iterdir())
