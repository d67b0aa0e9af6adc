"""What ranks of a script import inside functions is imported once for all in the next start."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.running import User, how_started, zygote_pid
from tests.scripts import JOIN, script

_SCRIPT = f"""
import os
def work():
    import calm, calm.part7, my_own
    os.environ["MY_FLAG"] = "as the script sets it"
    print("calm in", calm.pid, "own in", my_own.pid == os.getpid(), flush=True)
    if os.environ.get("IMPORTS"):
        other = __import__(os.environ["IMPORTS"])
        print("flag", other.flag, flush=True)
if True:
    work()
{JOIN}
dist.barrier()
"""
_LIBRARIES = {
    "starts_a_thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nflag = ''\n",
    "asks": "import os\nflag = os.environ.get('MY_FLAG')\n",
}


class Typist:
    """Somebody who starts a script again and again, with libraries installed in a folder."""

    def __init__(self, user: User) -> None:
        self.user, self.site = user, user.folder / "site"
        (self.site / "calm-1.0.dist-info").mkdir(parents=True)
        (self.site / "calm").mkdir()
        (self.site / "calm/__init__.py").write_text("import os\npid = os.getpid()\n")
        for number in range(25):
            (self.site / f"calm/part{number}.py").touch()
        (self.site / "calm/part7.py").write_text(
            "".join(f"import calm.part{number}\n" for number in range(25) if number != 7)
        )
        for name, text in _LIBRARIES.items():
            (self.site / f"{name}.py").write_text(text)
        (user.folder / "my_own.py").write_text("import os\npid = os.getpid()\n")
        self._script = script(user.folder, _SCRIPT)

    def start(self, *options: str, imports: str = "") -> str:
        """Start it; return its output."""
        path = os.pathsep.join([self.user.environ["PYTHONPATH"], str(self.site)])
        cache = str(self.user.folder / "cache")
        env = {"PYTHONPATH": path, "AIRLOCK_CACHE_DIR": cache, "IMPORTS": imports}
        words = ("run", "--num-gpus", "2", *options, self._script)
        return self.user.output_of(*words, env=env)

    def note(self) -> dict[str, object]:
        (file,) = (self.user.folder / "cache/imports").glob("*.json")
        note: dict[str, object] = json.loads(file.read_text())
        return note

    def imported_in(self, out: str) -> set[int]:
        lines = [line.split() for line in out.splitlines() if line.startswith("calm in ")]
        assert all(words[-1] == "True" for words in lines), out
        return {int(words[2]) for words in lines}


@pytest.fixture
def typist(user: User) -> Typist:
    return Typist(user)


def test_the_second_start_imports_for_all_what_each_imported_and_forgets_what_was_replaced(
    typist: Typist,
) -> None:
    out = typist.start()
    assert len(typist.imported_in(out)) == 2
    assert "[Rank 0] IMPORT: the next start imports calm once for all ranks" in out
    modules = typist.note()["modules"]
    assert isinstance(modules, list)
    assert {"calm", "calm.part3"} <= set(modules)
    assert not {"my_own", "__main__"} & set(modules)

    out = typist.start()
    assert "[Zygote] IMPORT: as ranks of the last start did: calm" in out
    assert typist.imported_in(out) == {zygote_pid(typist.user.run())}
    assert "the next start" not in out

    out = typist.start("--preload", "none")
    assert len(typist.imported_in(out)) == 2

    (typist.site / "more-1.0.dist-info").mkdir()  # something is installed
    assert len(typist.imported_in(typist.start())) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("starts_a_thread", "after importing starts_a_thread, it has 2 threads"),
        ("asks", "asks asked for MY_FLAG when it was imported"),
    ],
)
def test_what_is_unsafe_to_import_for_all_turns_one_start_cold_and_is_left_to_the_ranks(
    typist: Typist, name: str, why: str
) -> None:
    flags = []
    for expected in ("warm", "cold", "warm"):
        out = typist.start(imports=name)
        flags.append([line for line in out.splitlines() if line.startswith("flag ")])
        start, reason = how_started(typist.user.run())
        assert start == expected, out
        assert expected == "warm" or (reason or "").startswith(why)
    assert flags[0] == flags[1] == flags[2]
    assert typist.imported_in(out) == {zygote_pid(typist.user.run())}
    assert name in typist.note()["unsafe"]  # type: ignore[operator]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"modules": 3}', '{"installed": []}'])
def test_a_note_that_is_damaged_is_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    from launch.start.rank import learned_imports
    from rundir.config import ScriptConfig

    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path))
    mine = ScriptConfig(path=str(tmp_path / "a.py"))
    learned_imports.mark_unsafe(mine, learned_imports.Learned(modules=["a"]), "b", "c")
    assert learned_imports.learned_of(mine).modules == ["a"]
    (file,) = (tmp_path / "imports").iterdir()
    file.write_text(text)
    assert learned_imports.learned_of(mine) == learned_imports.Learned()
