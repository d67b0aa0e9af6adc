"""An impossible warm start: whatever is wrong with the zygote, the run starts cold and says why."""

from __future__ import annotations

import pytest

from tests.running import IN_ZYGOTE, SHORT, User, assert_nothing_left, events_of, how_started


@pytest.mark.long
def test_an_import_that_fails_in_the_zygote_is_told_and_the_run_starts_cold(user: User) -> None:
    env = user.hooked(
        "train.worker",
        f"{IN_ZYGOTE}\nif in_zygote:\n    raise ImportError('only here')",
    )
    out = user.output_of(*SHORT, env=env)
    assert how_started(user.run()) == ("cold", "ImportError: only here")
    assert "airlock: starting cold: ImportError: only here" in out
    assert "Traceback" in user.run().zygote_log.read_text()


@pytest.mark.parametrize("how", ["crashes", pytest.param("hangs", marks=pytest.mark.long)])
def test_a_zygote_that_crashes_or_hangs_is_given_up_for_a_cold_start(user: User, how: str) -> None:
    deed = "os.kill(os.getpid(), 11)" if how == "crashes" else "import time; time.sleep(3600)"
    body = f"{IN_ZYGOTE}\nif in_zygote:\n    {deed}"
    env = user.hooked("train.worker", body)
    limit = () if how == "crashes" else ("--set", "launch.zygote_timeout_s=8")
    out = user.output_of(*SHORT, *limit, env=env)
    start, reason = how_started(user.run())
    assert start == "cold"
    expected = "ended with -11 while importing" if how == "crashes" else "for more than 8 s"
    assert reason is not None
    assert expected in reason
    assert f"airlock: starting cold: {reason}" in out
    assert_nothing_left(user.run())


@pytest.mark.long
def test_after_a_cold_start_for_want_of_a_warm_one_the_failing_rank_is_named(user: User) -> None:
    user.hooked(
        "train.worker",
        f"{IN_ZYGOTE}\nif in_zygote:\n    raise ImportError('only here')",
    )
    env = user.hooked(
        "ranks.group",
        "module.meet = lambda *args: [][int(os.environ['RANK'])]",
    )
    out = user.output_of(*SHORT, env=env, code=10)
    assert "raised IndexError" in out
    assert "the zygote killed" not in out


@pytest.mark.long
def test_a_zygote_that_cannot_write_its_verdict_is_not_trusted(user: User) -> None:
    # From then on every write fails, as on a full disk.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    body = f"{IN_ZYGOTE}\nif in_zygote:\n    {limit}"
    env = user.hooked("train.worker", body)
    out = user.output_of(*SHORT, env=env)
    assert "airlock: starting cold: the zygote ended with 1 while importing trainer" in out


@pytest.mark.long
def test_where_no_rank_can_be_forked_the_run_starts_cold(user: User) -> None:
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
    env = user.hooked("train.worker", body)
    out = user.output_of(*SHORT, env=env)
    run = user.run()
    assert [event["start"] for event in events_of(run, "mark", "start")] == ["warm", "cold"]
    assert "airlock: starting cold: no rank could be forked: " in out
    assert_nothing_left(run)


@pytest.mark.long
def test_where_the_zygote_cannot_be_started_the_run_starts_cold(user: User) -> None:
    folder = user.folder / ("a temporary folder with a name too long for a socket" * 2)
    folder.mkdir()
    out = user.output_of(*SHORT, env={"TMPDIR": str(folder)})
    assert "airlock: starting cold: the zygote could not be started: AF_UNIX path too long" in out
