"""The choice of the cause in a log: the root, not its consequences, nor anything harmless."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.logs.diagnosis import diagnose
from doctor.logs.tracebacks import is_own
from tests.doctor.doctor_rules import rules, trace, verdict_on

FULL = "OSError: [Errno 28] No space left on device: '/data'"
PEER = "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:4242"


def test_what_follows_from_the_root_is_not_named_though_it_comes_first(tmp_path: Path) -> None:
    log = trace(PEER, "[rank0]: ") + trace(FULL, "[rank3]: ") + "failed (exitcode: -9) of python\n"
    verdict = verdict_on(tmp_path, log)
    assert (verdict.cause, verdict.rank, verdict.confidence) == ("no-disk", 3, 0.95)
    assert [one.line for one in verdict.evidence] == [18, 13]
    assert verdict.evidence[1].text == '[rank3]:   File "/home/u/train.py", line 7, in main'


def test_of_two_roots_the_earlier_one_is_named(tmp_path: Path) -> None:
    log = "NVRM: GPU at 1\nXid 79\n" + FULL
    assert verdict_on(tmp_path, log).cause == "gpu-lost"
    assert verdict_on(tmp_path, f"{FULL}\n{log}").cause == "no-disk"


def test_a_root_that_explains_an_earlier_one_is_named_instead(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, f"EOFError: unexpected end of file\n{FULL}\n")
    assert (verdict.cause, verdict.evidence[0].line) == ("no-disk", 2)


def test_a_symptom_is_named_where_there_is_no_root(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, f"{PEER}\nKilled\n")
    assert (verdict.cause, verdict.confidence) == ("killed", 0.4)


def test_where_there_are_only_cascades_the_root_is_said_to_be_elsewhere(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, trace(PEER, "[rank0]: "))
    assert (verdict.cause, verdict.rank) == ("peer-lost", 0)
    assert verdict.confidence <= 0.3
    assert "root cause is not in this log" in verdict.why


def test_the_rank_that_others_wait_for_is_told_from_their_watchdogs(tmp_path: Path) -> None:
    line = (
        "[rank{0}]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE) ran for 600012 ms\n"
    )
    verdict = verdict_on(tmp_path, line.format(0, 7) + line.format(1, 5) + line.format(2, 7))
    assert "Rank 1 got no farther than collective 5, others to 7" in verdict.why
    assert verdict.rank == 1
    verdict = verdict_on(tmp_path, line.format(0, 7) + line.format(1, 7) + line.format(3, 7))
    assert "Ranks 0, 1, 3 waited in collective 7, and rank 2 did not: look there" in verdict.why
    assert verdict.rank == 2
    verdict = verdict_on(tmp_path, line.format(0, 7) + line.format(1, 7))
    assert "look at a rank that did not" in verdict.why


@pytest.mark.parametrize(
    "log",
    [
        "",
        "step 1 loss 2.0\nstep 2 loss 1.9\n",
        f"WARNING {FULL}: will be tried again\n",
        "Exception ignored in: <function f at 0x7f>\n" + trace("OSError: unexpected end of file"),
        trace("lib.NotAnError: on purpose"),
        "Xid 79 without a proof\n",
        "NVRM: GPU at 1\nXid 79\nsimulated\n",
        "the Xid 79 would stand at the beginning\nNVRM: GPU at 1\n",
        f"{FULL}\n" + "step 1 loss 2.0\n" * 60,
        f"{FULL}\nsaved\nTraining completed.\n",
        trace("ValueError: caught") + "100%|###| 5/5 [00:01, 5.0it/s]\r" * 60,
        'return "No space left on device: will be tried again"',
    ],
    ids=[
        "empty",
        "fine",
        "benign",
        "ignored",
        "benign exception",
        "without what it needs",
        "unless",
        "not at the start",
        "survived",
        "in the end",
        "exception survived",
        "quoted",
    ],
)
def test_nothing_is_named_where_nothing_ended_the_run(tmp_path: Path, log: str) -> None:
    verdict = verdict_on(tmp_path, log)
    assert (verdict.cause, verdict.rank, verdict.evidence) == ("unknown", None, ())


def test_a_trouble_that_goes_on_is_not_got_over_however_often_it_is_seen(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, f"loss nan: {FULL}\n" * 300)
    assert (verdict.cause, verdict.evidence[0].line) == ("no-disk", 1)


def test_a_harmless_line_above_a_traceback_does_not_hide_it(tmp_path: Path) -> None:
    log = f"WARNING {FULL}: will be tried again\n" + trace("KeyError: 'a'")
    assert verdict_on(tmp_path, log).title == "KeyError: 'a'"


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3.11/runpy.py",
        "C:\\Users\\me\\anaconda3\\envs\\x\\lib\\runpy.py",
        "/home/u/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/home/u/venv/bin/torchrun",
        "<string>",
        "<frozen importlib._bootstrap>",
    ],
)
def test_code_of_libraries_is_not_the_users(file: str) -> None:
    assert not is_own(file)
    assert is_own("/home/u/project/lib/train.py")


def test_an_exception_that_no_rule_knows_is_named_with_the_users_own_line(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, "step 1\n" + trace("IndexError: out of range", "[rank2]: "))
    assert (verdict.cause, verdict.confidence, verdict.rank) == ("python-exception", 0.5, 2)
    assert verdict.title == "IndexError: out of range"
    assert [one.line for one in verdict.evidence] == [10, 5]
    assert verdict.fix == "less -N +7 /home/u/train.py"


@pytest.mark.parametrize("num_cut", [1, 2, 3, 5])
def test_a_traceback_whose_beginning_is_cut_off_is_one(tmp_path: Path, num_cut: int) -> None:
    whole = trace("IndexError: out of range", "[rank2]: ").splitlines()
    verdict = verdict_on(tmp_path, "\n".join(whole[num_cut:]))
    assert (verdict.title, verdict.rank) == ("IndexError: out of range", 2)
    syntax = (
        "  File \"train.py\", line 3\n    main(\n        ^\nSyntaxError: '(' was never closed\n"
    )
    assert verdict_on(tmp_path, syntax).title == "SyntaxError: '(' was never closed"


@pytest.mark.parametrize(
    "raised",
    [
        "socket.gaierror: [Errno -2] Name or service not known",
        "zlib.error: Error -3",
        "queue.Empty",
        "Odd: 3",
    ],
)
def test_whatever_stands_right_below_the_calls_was_raised(tmp_path: Path, raised: str) -> None:
    assert verdict_on(tmp_path, trace(raised)).title == raised


def test_what_comes_after_a_traceback_without_an_end_is_no_source(tmp_path: Path) -> None:
    torn = "".join(trace("").splitlines(keepends=True)[:-1])
    log = f"{torn}terminate called\n  what():  unexpected end of file\n"
    assert verdict_on(tmp_path, log).cause == "torn-file"


def test_a_traceback_of_a_notebook_is_one(tmp_path: Path) -> None:
    log = """\
-----------------------------------------------------------
OddFailure                     Traceback (most recent call last)
Cell In[9], line 1
----> 1 trainer.train()

File ~/v/lib/python3.10/site-packages/torch/x.py:3244, in F.result(self)
   3242     assert result is None
-> 3244     raise OSError("No space left on device")
3245 return self.kernel

OddFailure: backend='x' raised:
"""
    verdict = verdict_on(tmp_path, log)
    assert verdict.title == "OddFailure: backend='x' raised:"
    assert verdict.evidence[0].line == 11


def test_what_a_logger_writes_below_an_exception_is_not_its_message(tmp_path: Path) -> None:
    for prefix in ("", "2026-11-21 10:00:00,123 - INFO - "):
        summary = f"{prefix}ERROR:torch.distributed.elastic:failed (exitcode: -9) local_rank: 0\n"
        verdict = verdict_on(tmp_path, trace("AttributeError: no eop", prefix) + summary)
        assert verdict.title == "AttributeError: no eop"


def test_stacks_that_end_in_no_exception_are_none(tmp_path: Path) -> None:
    stack = '  File "/home/u/train.py", line 3, in main\n    work()\n'
    log = f"Stack (most recent call last):\n{stack}going on\nlib.SomeError: later\n"
    assert verdict_on(tmp_path, log).cause == "unknown"
    dump = 'Current thread 0x7f (most recent call first):\n  File "train.py", line 3 in main\n'
    assert verdict_on(tmp_path, f"{dump}lib.SomeError: no\n").cause == "unknown"


def test_a_rule_knows_an_exception_by_a_further_line_of_its_message(tmp_path: Path) -> None:
    log = trace("RuntimeError: cannot save\n  reason: unexpected end of file\nsee above")
    verdict = verdict_on(tmp_path, log)
    assert (verdict.cause, [one.line for one in verdict.evidence]) == ("torn-file", [10, 4])
    peer = trace("DistBackendError: NCCL error\nLast error: Connection closed by peer")
    assert verdict_on(tmp_path, peer).cause == "peer-lost"


def test_tracebacks_of_several_ranks_that_are_mixed_up_are_told_apart(tmp_path: Path) -> None:
    one = trace("KeyError: 'one'", "[rank1]: ", "/a/one.py").splitlines()
    two = trace("KeyError: 'two'", "[rank2]: ", "/a/two.py").splitlines()
    mixed = [line for pair in zip(two, one, strict=True) for line in pair]
    verdict = verdict_on(tmp_path, "\n".join(mixed))
    assert (verdict.title, verdict.rank) == ("KeyError: 'two'", 2)
    assert verdict.fix == "less -N +7 /a/two.py"


@pytest.mark.parametrize(
    ("log", "title"),
    [
        (
            trace("KeyError: 'a'") + "\nDuring handling of the above exception, another exception "
            "occurred:\n\n" + trace("ValueError: no such model"),
            "ValueError: no such model",
        ),
        (
            trace("KeyError: 'a'") + "\nThe above exception was the direct cause of the following "
            "exception:\n\n" + trace("RuntimeError: it failed"),
            "KeyError: 'a'",
        ),
        (
            trace(
                "RuntimeError: Caught KeyError in DataLoader worker process 0.\nOriginal "
                + trace("KeyError: 'b'").rstrip()
            ),
            "KeyError: 'b'",
        ),
    ],
    ids=["handling", "cause", "worker"],
)
def test_of_joined_exceptions_the_one_that_tells_is_named(
    tmp_path: Path, log: str, title: str
) -> None:
    assert verdict_on(tmp_path, log).title == title


def test_what_matched_stands_in_title_and_fix_and_other_braces_stay(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, f"{FULL}\n")
    assert verdict.title == "The disk /data is full"
    assert verdict.fix == "df -h /data   # awk '{print $1}' shows it"
    assert verdict_on(tmp_path, "No space left on device\n").title == "The disk WHERE is full"


ELASTIC = """\
E1121 10:00:05.1 42 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) \
local_rank: 3 (pid: 4242) of binary: python
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:05
  host      : gpu-07
  rank      : 11 (local_rank: 3)
  exitcode  : -9 (pid: 4242)
"""


def test_the_rank_is_read_from_torchruns_summary(tmp_path: Path) -> None:
    first, _, summary = ELASTIC.partition("\n")
    assert verdict_on(tmp_path, first).rank == 3
    assert verdict_on(tmp_path, ELASTIC).rank == 11  # the global rank: the other one is the node's
    assert verdict_on(tmp_path, summary).rank == 11
    assert verdict_on(tmp_path, trace(FULL) + summary).rank == 11  # its own line names none


def test_the_rank_may_stand_on_another_line_of_the_same_cause(tmp_path: Path) -> None:
    log = f"slurmstepd: {FULL}\n[rank4]: {FULL}\n"
    verdict = verdict_on(tmp_path, log)
    assert (verdict.rank, verdict.evidence[0].line) == (4, 1)


def test_of_several_logs_the_earliest_by_their_stamps_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    stamp = "2026-11-21 10:00:{} "
    (tmp_path / "logs/a.log").write_text(f"{stamp.format('07')}NVRM: GPU at 1\nXid 79\n")
    (tmp_path / "logs/b.log").write_text(f"{stamp.format('05')}saves\n{FULL}\n")
    (tmp_path / "logs/c.log").write_text("Connection closed by peer\n")  # does not count
    verdict = diagnose([str(tmp_path / "logs")], rules(tmp_path))
    assert (verdict.cause, verdict.evidence[0].file) == ("no-disk", str(tmp_path / "logs/b.log"))
