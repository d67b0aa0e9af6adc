"""The sources of uv and the packages, and the errors if they cannot be reached."""

import json
import os
import re
from pathlib import Path

import pytest

from setup.uv import settings_of_pip
from tests.clone import Clone, environment, tool
from tests.setup.index import Index, stub_uv


@pytest.mark.parametrize("fetches_uv", [False, True])
def test_without_a_network_the_error_says_so_and_how_to_go_on(
    clone: Clone, index: Index, fetches_uv: bool
) -> None:
    index.close()
    if fetches_uv:
        stub_uv(clone)
    result = clone.run("tiny", PIP_RETRIES="1", UV_HTTP_RETRIES="0", PIP_INDEX_URL=index.url)
    assert result.returncode == 4
    what = "pip cannot get uv" if fetches_uv else "uv cannot resolve what is pinned"
    assert f"airlock: {what} (log: " in result.stderr
    assert re.search(r"(?i)connection refused", result.stderr)
    assert f"\n  '{clone.root}/start.sh' tiny\n" in result.stderr
    assert "PIP_INDEX_URL=" in result.stderr
    assert "Traceback" not in result.stderr


def python_that_lacks(clone: Clone, *modules: str) -> None:
    """Put a python3 on the clone's PATH that has neither pip nor these modules; and no uv."""
    (clone.bin / "uv").unlink()
    own = environment(clone.root.parent / "lacking")  # venv gives it no pip
    site = next(own.glob("lib/python*/site-packages"))
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n"
    )
    tool(clone.bin / "python3", f'#!/bin/sh\nexec "{own}/bin/python" "$@"\n')


@pytest.mark.long
def test_without_pip_and_a_uv_that_is_new_enough_one_comes_by_the_pip_of_an_environment(
    clone: Clone, index: Index
) -> None:
    stub_uv(clone)
    (clone.bin / "uv").touch()
    python_that_lacks(clone)
    tool(clone.bin / "uv", "#!/bin/sh\n[ $1 = --version ] && echo 'uv 0.7.22'\n")
    index.may_answer.set()
    result = clone.run("tiny", PIP_INDEX_URL=index.url)
    assert result.returncode == 0, result.stderr
    assert "airlock: fetching uv==" in result.stderr
    assert json.loads(result.stdout)["prefix"] == str(clone.root / ".venv")


def test_without_uv_pip_and_venv_what_to_install_is_said(clone: Clone) -> None:
    python_that_lacks(clone, "venv", "ensurepip")
    result = clone.run("tiny")
    assert result.returncode == 4
    assert f"airlock: pip cannot get uv (log: {clone.root}/.venv/install.log):\n" in result.stderr
    assert "without pip and venv: apt install python3-venv, or install uv itself" in result.stderr
    assert f"  '{clone.root}/start.sh' tiny\n" in result.stderr


def test_a_uv_that_does_not_work_is_shown_with_what_it_says(clone: Clone) -> None:
    says = "case $1 in --version) echo 'uv 0.9.1' ;; *) echo 'wrong libc' >&2; exit 1 ;; esac"
    tool(clone.bin / "uv", f"#!/bin/sh\n{says}\n")
    result = clone.run("tiny")
    assert result.returncode == 4
    assert f"airlock: {clone.bin}/uv does not work (log: " in result.stderr
    assert f"    wrong libc\n  '{clone.root}/start.sh' tiny\n" in result.stderr


def test_where_pip_is_set_to_a_mirror_packages_come_from_there(clone: Clone, index: Index) -> None:
    index.may_answer.set()
    clone.pin("airlock-tiny==1.0\n")
    settings = clone.root.parent / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.url}\nextra-index-url = {index.url}\n")
    program = clone.stub(UV_HTTP_RETRIES="0", PIP_CONFIG_FILE=str(settings))
    assert program["prefix"] == str(clone.root / ".venv")
    assert index.was_asked.is_set()


def test_what_pip_is_set_to_becomes_settings_of_uv_and_those_of_uv_win(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = http://a\nproxy = http://p\ntrusted-host = a\ncert = /c\n"
        "[install]\nindex-url = http://b\nextra-index-url =\n  http://c\n  http://d\n"
        "[list]\nindex-url = http://no\n"
    )
    of_uv = ("UV_", "PIP_", "SSL_", "ALL_PROXY")
    for name in [name for name in os.environ if name.startswith(of_uv)]:
        monkeypatch.delenv(name)
    own = {"PIP_TIMEOUT": "1.5", "PIP_FIND_LINKS": "/one /two", "PIP_NO_INDEX": "1"}
    own |= {"PIP_CERT": "", "PIP_CONFIG_FILE": str(file), "UV_INSECURE_HOST": "b"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    env, options = settings_of_pip()
    assert options == ["--no-index"]
    expected = {
        "UV_DEFAULT_INDEX": "http://b",
        "UV_INDEX": "http://c http://d",
        "UV_FIND_LINKS": "/one,/two",
        "UV_INSECURE_HOST": "b",
        "ALL_PROXY": "http://p",
        "SSL_CERT_FILE": None,
        "UV_HTTP_TIMEOUT": "2",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert {name: env.get(name) for name in expected} == expected
    monkeypatch.setenv("UV_INDEX_URL", "http://mine")
    assert "UV_DEFAULT_INDEX" not in settings_of_pip()[0]


def test_where_pip_is_set_to_a_folder_alone_packages_come_from_there(clone: Clone) -> None:
    clone.pin("airlock-tiny==1.0\n")
    folders = f"{clone.root.parent} wheels"  # one is relative to where it is typed
    program = clone.stub(PIP_NO_INDEX="1", PIP_FIND_LINKS=folders)
    assert program["prefix"] == str(clone.root / ".venv")
