"""A clone of the project with a stub for its program, and an index that it may install from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clone import Clone, installed_in, start_before
from tests.setup.index import Index


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture
def started(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return start_before(clone, tmp_path_factory.getbasetemp())


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return installed_in(tmp_path_factory.getbasetemp())


@pytest.fixture
def index(clone: Clone) -> Iterator[Index]:
    """Yield an index for the clone's requirements that holds the package back."""
    served = Index(clone.root.parent / "wheels", ".whl")
    clone.pin(f"--index-url {served.url}\nairlock-tiny==1.0\n")
    yield served
    served.close()
