"""The tracer's child: asked once, ended along with its parent, and never awaited for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launch.config.resolve import resolve
from launch.plan.question import Question, question_of
from launch.plan.target import with_ranks
from launch.plan.tracer import Tracer
from machine.processes.signals import Interrupted, Signals
from rundir.errors import UserError
from tests.running import User, hooked, wait_for

SLEEPS = "import time; time.sleep(1000)"
DIES = "os.kill(os.getpid(), 9)"


Children = Callable[[], list[psutil.Process]]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in (("cache", "AIRLOCK_CACHE_DIR"), ("tmp", "TMPDIR")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture(autouse=True)
def children(tmp_path: Path) -> Iterator[Children]:
    """Return a function that lists the processes this test has started; none may be left.

    Other tests may have left theirs.
    """
    before = psutil.Process().children(recursive=True)

    def started() -> list[psutil.Process]:
        return [one for one in psutil.Process().children(recursive=True) if one not in before]

    yield started
    assert not started()
    assert not list((tmp_path / "tmp").glob("airlock*"))


def question(*settings: str) -> Question:
    return question_of(with_ranks(resolve("tiny", settings, {})[0], 2), "cpu")


@pytest.mark.runs
def test_several_questions_are_one_call_and_the_next_time_there_is_none(
    environ: dict[str, str], children: Children
) -> None:
    small, large = question("data.max_seq_length=32"), question()
    tracer = Tracer([large, small, large], environ)
    assert len(children()) == 1
    answers = tracer.wait(Signals())
    assert answers[0] == answers[2]
    assert answers[1].peak_bytes < answers[0].peak_bytes
    again = Tracer([small], environ)
    assert not children()
    assert again.poll()
    assert again.answers() == [answers[1]]


@pytest.mark.runs
def test_a_model_that_cannot_be_traced_is_told_in_the_tracers_own_words(user: User) -> None:
    (user.folder / "config.json").write_text('{"model_type": "no such model"}')
    asked = question(f"model.path={user.folder}")
    with pytest.raises(UserError, match=r"could not be predicted: .*cannot be used"):
        Tracer([asked], user.environ).wait(Signals())


@pytest.mark.parametrize(
    ("body", "words"), [(DIES, "signal 9"), ("raise OSError(5, 'broken')", "broken")]
)
def test_a_tracer_that_ends_badly_is_an_error_with_its_reason(
    user: User, body: str, words: str
) -> None:
    env = user.environ | user.hooked("rundir.errors", body)  # before anything heavy
    with pytest.raises(UserError, match=words):
        Tracer([question()], env).wait(Signals())


@pytest.mark.runs
def test_a_tracer_that_hangs_is_ended_after_a_while(user: User) -> None:
    env = user.environ | user.hooked("rundir.footprint", SLEEPS)
    tracer = Tracer([question()], env, timeout_s=3)
    with pytest.raises(UserError, match="not done after 3 s"):
        tracer.wait(Signals())


_SLOW_FROM_THE_SECOND_ON = """
import time
inner, calls = module.read_config, []
def read_config(path):
    calls.append(path)
    time.sleep(0 if len(calls) == 1 else 600)
    return inner(path)
module.read_config = read_config
"""


@pytest.mark.long
def test_what_is_answered_before_the_time_is_up_is_kept(user: User) -> None:
    env = user.environ | user.hooked("rundir.config_file", _SLOW_FROM_THE_SECOND_ON)
    first, second = question(), question("train.lora_rank=3")
    with pytest.raises(UserError, match="not done after"):
        Tracer([first, second], env, timeout_s=40).wait(Signals())
    answers = Tracer([first, second], env, timeout_s=0).wait_for_some(Signals())
    assert answers[0] is not None
    assert answers[1] is None


def test_a_stop_ends_it_at_once(environ: dict[str, str], tmp_path: Path) -> None:
    env = environ | hooked(environ, tmp_path, "rundir.footprint", SLEEPS)
    signals = Signals()
    signals.ask_to_stop()
    with pytest.raises(Interrupted):
        Tracer([question()], env).wait(signals)


@pytest.mark.runs
def test_one_that_does_not_listen_is_killed(user: User, children: Children) -> None:
    body = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPS}"
    env = user.environ | user.hooked("rundir.footprint", body)
    tracer = Tracer([question()], env)
    child = wait_for(children, why="no child")[0]
    wait_for(lambda: _ignores_sigterm(child.pid), why="it never ignored SIGTERM")
    started = time.monotonic()
    tracer.close()
    assert time.monotonic() - started < 60
    assert not child.is_running()


def _ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored >> (signal.SIGTERM - 1) & 1)


def test_without_room_for_its_files_it_says_so(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(user.folder / "none"))
    with pytest.raises(UserError, match="could not be predicted"):
        Tracer([question()], user.environ)
