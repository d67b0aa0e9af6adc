"""The trackers that metrics are reported to are checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.checks.packages import check_packages, check_tracking
from launch.track.services import services_in
from rundir.errors import UserError
from rundir.finding import Finding
from tests.launch.checks.conftest import context
from tests.running import Typed, User


def found(report_to: str, **environ: str) -> list[Finding]:
    return check_tracking(context("tiny", f"train.report_to={report_to}", environ=environ))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that W&B is installed: it is found, but must never be imported."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_nothing_is_said_where_nothing_is_asked_for() -> None:
    assert found("") == found("tensorboard") == []


def test_names_are_separated_by_commas_and_one_unknown_is_named() -> None:
    assert services_in(" wandb, trackio,,wandb , tensorboard") == ["wandb", "trackio"]
    with pytest.raises(UserError, match="names 'comet'") as raised:
        services_in("wandb,comet")
    assert "wandb or trackio" in raised.value.do


def test_a_run_that_reports_to_what_is_not_installed_does_not_start(user: User) -> None:
    shadow = user.folder / "shadow"  # whatever is installed here: a folder alone is not a package
    (shadow / "sitecustomize").mkdir(parents=True)
    (shadow / "sitecustomize" / "__init__.py").write_text(
        "import sys, importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'trackio' else find(name, *a)"
    )
    env = {"PYTHONPATH": f"{user.environ['PYTHONPATH']}:{shadow}"}
    err = user.typed.error_of("run", "tiny", "--set", "train.report_to=trackio", code=4, env=env)
    assert "packages: train.report_to=trackio needs the package trackio, which is not" in err
    assert '-m pip install "trackio"' in err
    assert not (user.folder / "runs").exists()


def test_an_unknown_one_is_a_slip_of_the_pen(typed: Typed, tmp_path: Path) -> None:
    err = typed.error_of("run", "tiny", "--set", "train.report_to=weights")
    assert "train.report_to names 'weights'" in err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_wandb_has_made_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    (finding,) = check_packages(context("tiny", "train.report_to=trackio"))
    assert finding.level == "error"
    assert found("trackio") == []


@pytest.mark.usefixtures("installed")
def test_wandb_without_a_key_is_a_warning(tmp_path: Path) -> None:
    (finding,) = found("wandb", HOME=str(tmp_path))
    assert finding.level == "warning"
    assert "no API key" in str(finding.warning)


@pytest.mark.usefixtures("installed")
def test_wandb_with_a_key_or_without_need_of_one_is_fine(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    for more in ({"WANDB_MODE": "offline"}, {"WANDB_API_KEY": "k"}):
        assert found("wandb", **home, **more)[0].level == "ok"
    (tmp_path / ".netrc").write_text("machine wandb.here login user password k\n")
    assert found("wandb", **home)[0].level == "warning"
    assert found("wandb", **home, WANDB_BASE_URL="https://wandb.here:8080")[0].level == "ok"
