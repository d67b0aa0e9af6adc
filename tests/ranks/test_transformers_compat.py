"""transformers' names are the same whether they are read from its files or remembered."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import import_utils

from ranks import transformers_compat
from ranks.transformers_compat import _remembering
from rundir.paths import ROOT

IMPORTS = """
import sys
opened = []
sys.addaudithook(lambda name, args: name == "open" and opened.append(str(args[0])))
if {quickly}:
    from ranks.transformers_compat import quicken
    quicken()
import transformers, transformers.models
opened = [path for path in opened if "/transformers/models/" in path and path.endswith(".py")]
modules = (transformers, transformers.models)
print(len(opened), hash(str([
    sorted((name, str(of)) for name, of in getattr(module, table).items())
    for module in modules for table in ("_class_to_module", "_object_missing_backend")
] + [sorted(module.__all__) for module in modules])))
"""


def import_in_a_process(cache: Path, *, quickly: bool) -> tuple[int, str]:
    """Return how many model files an import opens, and a hash of all names that it offers."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORTS.format(quickly=quickly)],
        env=env | {"AIRLOCK_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    num_opened, names = done.stdout.split()
    return int(num_opened), names


def test_the_second_import_opens_no_model_file_and_offers_the_same_names(tmp_path: Path) -> None:
    num_opened, names = import_in_a_process(tmp_path, quickly=False)
    assert num_opened > 1000  # else transformers needs this no more
    assert import_in_a_process(tmp_path, quickly=True)[1] == names
    assert import_in_a_process(tmp_path, quickly=True) == (0, names)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package like transformers, with one model, written a while ago."""
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    package = tmp_path / "package"
    write(package / "utils/import_utils.py", "")
    write(package / "models/__init__.py", "")
    write(package / "models/llama/modeling_llama.py", '__all__ = ["Llama"]')
    return package


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (1e9, 1e9 + len(list(path.parent.iterdir()))))


# As it is in a process where nothing has been read yet, or quickened.
read_files: Any = inspect.unwrap(import_utils.define_import_structure)


def names_of(package: Path, read: Any = read_files) -> dict[str, set[str]]:
    """Return the names by module, as a process that has just started is told."""
    transformers_compat._structure.cache_clear()
    import_utils.create_import_structure_from_path.cache_clear()
    define = _remembering(read, package / "utils/import_utils.py")
    [(packages, names)] = define(str(package / "models/__init__.py"), prefix="models").items()
    assert packages == frozenset({"torch"})
    return dict(names)


def read_no_more(*_: Any) -> Any:
    pytest.fail("the files were read again")


def test_names_are_remembered_until_a_file_changes(package: Path) -> None:
    llama = "models.llama.modeling_llama"
    assert names_of(package) == names_of(package, read_no_more) == {llama: {"Llama"}}

    write(package / "models/llama/modeling_llama.py", '__all__ = ["Lamas"]')  # as long as before
    os.utime(package / "models/llama/modeling_llama.py", (1e9, 2e9 / 2 + 5))
    assert names_of(package) == names_of(package, read_no_more) == {llama: {"Lamas"}}

    write(package / "models/gpt/modeling_gpt.py", '__all__ = ["GPT"]')
    assert names_of(package) == {llama: {"Lamas"}, "models.gpt.modeling_gpt": {"GPT"}}

    (package / "models/llama/modeling_llama.py").unlink()
    assert names_of(package) == {"models.gpt.modeling_gpt": {"GPT"}}

    write(package / "utils/import_utils.py", "# another version of the reader")
    with pytest.raises(pytest.fail.Exception, match="read again"):
        names_of(package, read_no_more)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": "of another time"}'])
def test_a_damaged_note_is_made_anew(package: Path, tmp_path: Path, content: str) -> None:
    names = names_of(package)
    [note] = (tmp_path / "cache/transformers").iterdir()
    note.write_text(content, encoding="utf-8")
    assert names_of(package) == names_of(package, read_no_more) == names


def test_a_note_without_its_names_is_made_anew(package: Path, tmp_path: Path) -> None:
    names = names_of(package)
    [note] = (tmp_path / "cache/transformers").iterdir()
    note.write_text(note.read_text("utf-8").replace("structure", "other"), encoding="utf-8")
    assert names_of(package) == names


def test_without_a_cache_to_write_to_all_is_read_each_time(package: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be", encoding="utf-8")
    assert names_of(package) == names_of(package) == {"models.llama.modeling_llama": {"Llama"}}


def test_what_was_written_just_now_is_not_remembered(package: Path) -> None:
    os.utime(package / "models/llama/modeling_llama.py")
    assert names_of(package) == {"models.llama.modeling_llama": {"Llama"}}
    with pytest.raises(pytest.fail.Exception, match="read again"):
        names_of(package, read_no_more)


def test_asked_twice_it_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [])
    transformers_compat.quicken()
    transformers_compat.quicken()
    assert len(sys.meta_path) == 1
