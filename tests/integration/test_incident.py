"""The bug-report archive of a failed run: complete, small, and without secrets."""

from __future__ import annotations

import zipfile

from tests.running import User
from tests.scripts import JOIN, script

_TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"  # noqa: S105 - nobody's
_FAILS = f"""{JOIN}
print("fetching https://someone:p4ssw0rd-of-theirs@example.org/data", flush=True)
print("with " + os.environ["HF_TOKEN"] + " and " + os.environ["OTHER_SECRET"], flush=True)
for _ in range(40):
    os.write(1, b"a line of a long log, as they are printed by the thousand\\n" * 1000)
def load():
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
if rank == 1:
    load()
dist.barrier()
"""


def test_a_failed_run_tells_cause_and_fix_and_leaves_one_file_without_secrets(user: User) -> None:
    env = {
        "HF_TOKEN": _TOKEN,
        "OTHER_SECRET": "no-one-may-see-this",
        "https_proxy": "http://me:proxy-password@localhost:1",
    }
    path = script(user.folder, _FAILS)
    out = user.output_of("run", path, "--api-key", "typed-by-hand-0123", env=env, code=10)
    report = out[out.index("airlock: the run failed: rank 1 raised RuntimeError") :]
    assert report.index("CUDA out of memory: the GPU's memory is full") < report.index("→ ")
    assert report.rstrip().endswith("RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB")
    run = user.run()
    diagnosis = user.diagnosis(run.path)
    assert (diagnosis["cause"], diagnosis["rank"]) == ("cuda-out-of-memory", 1)
    first, second = diagnosis["evidence"]
    assert run.rank_log(1, 0).read_text().splitlines()[first["line"] - 1] == first["text"]
    assert "in load" in second["text"]
    archive = run.incident_archive
    assert out.count(str(archive.relative_to(user.folder))) == 1
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
    for part in (
        "rank 1 raised RuntimeError: CUDA out of memory",
        "## What ran",
        "| torch |",
        "## Host memory",
        "## Ranks",
        "`rank1.log`",
    ):
        assert part in verdict
    assert not list(run.incidents.glob("*.part"))
