"""The packages that a configuration needs are looked up without importing them."""

from __future__ import annotations

import os

from tests.running import User, python

_MISSING = """
from launch.config import extra_packages as packages
from launch.config.resolve import resolve
for text, do in packages.missing(resolve("tiny", ("model.compile=true",), {})[0]):
    print(text, do, sep=" -> ")
"""


def test_a_model_is_not_compiled_where_the_path_of_torch_has_a_space(user: User) -> None:
    torch = user.folder / "a space" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("raise SystemExit('imported')")
    path = os.pathsep.join([str(torch.parent), user.environ["PYTHONPATH"]])
    lacking = python(_MISSING, env=user.environ | {"PYTHONPATH": path})
    assert f"cannot link in a path with a space: {torch} -> AIRLOCK_PYTHON=PATH" in lacking
