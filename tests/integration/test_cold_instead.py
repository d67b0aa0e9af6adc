"""An impossible warm start: whatever is wrong with the zygote, the run starts cold and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import (
    IN_ZYGOTE,
    SHORT,
    Start,
    assert_nothing_left,
    events_of,
    finish,
    hooked,
    how_started,
    run_folder,
)


def test_an_import_that_fails_in_the_zygote_is_told_and_the_run_starts_cold(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    env = hooked(
        environ,
        tmp_path,
        "train.worker",
        f"{IN_ZYGOTE}\nif in_zygote:\n    raise ImportError('only here')",
    )
    code, out, err = finish(airlock(*SHORT, env=env))
    assert code == 0, err
    assert how_started(run_folder(environ)) == ("cold", "ImportError: only here")
    assert "airlock: starting cold: ImportError: only here" in out
    assert "Traceback" in run_folder(environ).zygote_log.read_text()


@pytest.mark.parametrize("how", ["crashes", pytest.param("hangs", marks=pytest.mark.long)])
def test_a_zygote_that_crashes_or_hangs_is_given_up_for_a_cold_start(
    airlock: Start, environ: dict[str, str], tmp_path: Path, how: str
) -> None:
    deed = "os.kill(os.getpid(), 11)" if how == "crashes" else "import time; time.sleep(3600)"
    body = f"{IN_ZYGOTE}\nif in_zygote:\n    {deed}"
    env = hooked(environ, tmp_path, "train.worker", body)
    limit = () if how == "crashes" else ("--set", "launch.zygote_timeout_s=8")
    code, out, err = finish(airlock(*SHORT, *limit, env=env))
    assert code == 0, err
    start, reason = how_started(run_folder(environ))
    assert start == "cold"
    expected = "ended with -11 while importing" if how == "crashes" else "for more than 8 s"
    assert reason is not None
    assert expected in reason
    assert f"airlock: starting cold: {reason}" in out
    assert_nothing_left(run_folder(environ))


@pytest.mark.long
def test_after_a_cold_start_for_want_of_a_warm_one_the_failing_rank_is_named(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    hooked(
        environ,
        tmp_path,
        "train.worker",
        f"{IN_ZYGOTE}\nif in_zygote:\n    raise ImportError('only here')",
    )
    env = hooked(
        environ,
        tmp_path,
        "ranks.group",
        "module.meet = lambda *args: [][int(os.environ['RANK'])]",
    )
    code, out, _ = finish(airlock(*SHORT, env=env))
    assert code == 10
    assert "raised IndexError" in out
    assert "the zygote killed" not in out


@pytest.mark.long
def test_a_zygote_that_cannot_write_its_verdict_is_not_trusted(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    # From then on every write fails, as on a full disk.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    body = f"{IN_ZYGOTE}\nif in_zygote:\n    {limit}"
    env = hooked(environ, tmp_path, "train.worker", body)
    code, out, err = finish(airlock(*SHORT, env=env))
    assert code == 0, out + err
    assert "airlock: starting cold: the zygote ended with 1 while importing trainer" in out


@pytest.mark.long
def test_where_no_rank_can_be_forked_the_run_starts_cold(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    # The kernel refuses the second fork, as it does at a limit on processes or memory.
    body = f"""{IN_ZYGOTE}
if in_zygote:
    fork, forks = os.fork, []
    def fork_once():
        forks.append(1)
        if len(forks) > 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()
    os.fork = fork_once
"""
    env = hooked(environ, tmp_path, "train.worker", body)
    code, out, err = finish(airlock(*SHORT, env=env))
    assert code == 0, out + err
    run = run_folder(environ)
    assert [event["start"] for event in events_of(run, "mark", "start")] == ["warm", "cold"]
    assert "airlock: starting cold: no rank could be forked: " in out
    assert_nothing_left(run)


@pytest.mark.long
def test_where_the_zygote_cannot_be_started_the_run_starts_cold(
    airlock: Start, tmp_path: Path
) -> None:
    folder = tmp_path / ("a temporary folder with a name too long for a socket" * 2)
    folder.mkdir()
    code, out, err = finish(airlock(*SHORT, env={"TMPDIR": str(folder)}))
    assert code == 0, out + err
    assert "airlock: starting cold: the zygote could not be started: AF_UNIX path too long" in out
