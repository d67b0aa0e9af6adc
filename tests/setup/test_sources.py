"""The sources of uv and the packages, and the errors if they cannot be reached."""

import json
import re

import pytest

from tests.clone import (
    Clone,
    environment,
    tool,
)
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


def test_a_python_without_pip_gets_uv_by_that_of_an_environment(clone: Clone, index: Index) -> None:
    stub_uv(clone)
    (clone.bin / "uv").touch()
    python_that_lacks(clone)
    index.may_answer.set()
    result = clone.run("tiny", PIP_INDEX_URL=index.url)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["prefix"] == str(clone.root / ".venv")


def test_without_uv_pip_and_venv_what_to_install_is_said(clone: Clone) -> None:
    python_that_lacks(clone, "venv", "ensurepip")
    result = clone.run("tiny")
    assert result.returncode == 4
    assert "has neither pip nor venv, and there is no uv on PATH" in result.stderr
    install = "  curl -LsSf https://astral.sh/uv/install.sh | sh  # or apt install python3-venv\n"
    assert f"{install}  '{clone.root}/start.sh' tiny\n" in result.stderr


def test_a_uv_that_is_too_old_is_passed_by(clone: Clone, index: Index) -> None:
    stub_uv(clone)
    tool(clone.bin / "uv", "#!/bin/sh\n[ $1 = --version ] && echo 'uv 0.7.22'\n")
    index.may_answer.set()
    result = clone.run("tiny", PIP_INDEX_URL=index.url)
    assert "airlock: fetching uv==" in result.stderr
    assert result.returncode == 0, result.stderr


def test_a_uv_that_does_not_work_is_shown_with_what_it_says(clone: Clone) -> None:
    says = "case $1 in --version) echo 'uv 0.9.1' ;; *) echo 'wrong libc' >&2; exit 1 ;; esac"
    tool(clone.bin / "uv", f"#!/bin/sh\n{says}\n")
    result = clone.run("tiny")
    assert result.returncode == 4
    assert f"airlock: {clone.bin}/uv does not work (log: " in result.stderr
    assert f"    wrong libc\n  '{clone.root}/start.sh' tiny\n" in result.stderr


@pytest.mark.parametrize("by", ["a file of settings", "the environment", "uv's own"])
def test_where_pip_is_set_to_a_mirror_packages_come_from_there(
    clone: Clone, index: Index, by: str
) -> None:
    index.may_answer.set()
    clone.pin("airlock-tiny==1.0\n")
    settings = clone.root.parent / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.url}\nextra-index-url = {index.url}\n")
    env = {
        "a file of settings": {"PIP_CONFIG_FILE": str(settings)},
        "the environment": {"PIP_INDEX_URL": index.url},
        "uv's own": {"UV_DEFAULT_INDEX": index.url, "PIP_INDEX_URL": "http://127.0.0.1:9"},
    }[by]
    assert clone.stub(UV_HTTP_RETRIES="0", **env)["prefix"] == str(clone.root / ".venv")
    assert index.asked.is_set()


def test_where_pip_is_set_to_a_folder_alone_packages_come_from_there(clone: Clone) -> None:
    clone.pin("airlock-tiny==1.0\n")
    env = {"PIP_NO_INDEX": "1", "PIP_TIMEOUT": "1.5"}
    env["PIP_FIND_LINKS"] = f"{clone.root.parent} wheels"  # relative to where it is typed
    assert clone.stub(**env)["prefix"] == str(clone.root / ".venv")
