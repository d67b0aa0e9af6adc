"""The prefixes of launchers and collectors are stripped, and give the rank and the time."""

from __future__ import annotations

import pytest

from doctor.logs.prefix import strip

TEXT = "RuntimeError: no"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", None),
        ("[rank3]: ", 3),
        ("[default3]:", 3),
        ("[trainer3]:", 3),
        ("3: ", 3),
        (" 3: ", 3),
        ("[3] ", 3),
        ("[rank: 3] ", 3),
        ("(rank3) ", 3),
        ("Rank 3: ", 3),
        ("[1,3]<stderr>:", 3),
        ("[1,mpirank:3,algo-1]<stderr>:", 3),
        ("[2024-02-27T21:35:28.419846Z] fa88a9df [rank=3] || ", 3),
        ("(worker1, rank=1, pid=2972, ip=10.0.0.4) [rank3]: ", 3),
        ("[node1:3]:", 3),
        ("[pod/llm-worker-3/pytorch] [rank3]: ", 3),
        ("2026-11-21 10:00:00.123 | ERROR    | train:main:12 - ", None),
        ("[rank3]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] ", 3),
        ("[default1]:[rank11]: ", 11),
        ("[E ProcessGroupNCCL.cpp:475] [Rank 3] ", 3),
        (
            "[rank3]:[E804 23:05:54.817424543 ProcessGroupNCCL.cpp:19] [PG ID 0 PG GUID 0 Rank 3] ",
            3,
        ),
        ("stderr: ", None),
        ("stdout: [09:51:08] WARNING  ", None),
        ("           ERROR    ", None),
        ("[2026-05-26 15:06:40,046] [INFO] [launch.py:315:sigkill_handler] ", None),
        ("W1121 10:00:00.123000 4242 torch/distributed/run.py:766] ", None),
        ("W1121 10:00:00.123000 140735 site-packages/torch/distributed/run.py:766] ", None),
        ("2026-11-21 10:00:00,123 ", None),
        ("2026-11-21T10:00:00.123456789Z stderr F ", None),
        ("2026-11-21T10:00:00Z [rank3]: ", 3),
        ("[2026-11-21 10:00:00,123] torch.distributed.elastic.multiprocessing.api: [ERROR] ", None),
        ("[2026-11-21 10:00:00,123][__main__][ERROR] - ", None),
        ("2026-11-21 10:00:00,123 - __main__.train - ERROR - ", None),
        ("2026-11-21 10:00:00,123 - Trainer - INFO - [rank7]: ", 7),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:", None),
        ("INFO: ", None),
        ("[INFO|trainer.py:1821] 2026-11-21 10:00:00,123 >> ", None),
        ("Nov 21 10:00:00 gpu-07 python[4242]: ", None),
        ("Nov 21 10:00:00 gpu-07 kernel: [12345.678901] ", None),
        ("[Sat Nov 21 10:00:00 2026] ", None),
        ("[10:00:00] ", None),
        ("trainer-1  | ", None),
        ("(RayTrainWorker pid=4242, ip=10.0.0.1) ", None),
        ("gpu-07: ", None),
        ("172.27.221.56: [rank5]: ", 5),
        ("gpu-07:4242:4301 [3] ", None),
    ],
)
def test_a_prefix_comes_off_and_tells_the_rank(prefix: str, rank: int | None) -> None:
    if prefix.startswith("gpu-07:4242"):  # NCCL's own, only before its own lines
        for line in ("NCCL WARN no", "include/alloc.h:178 NCCL WARN no"):
            assert (strip(prefix + line).text, strip(prefix + line).rank) == (line, 3)
        return
    found = strip(prefix + TEXT)
    assert (found.text, found.rank) == (TEXT, rank)


@pytest.mark.parametrize(
    "line",
    [
        '  File "train.py", line 3, in <module>',
        "ValueError: 3: no",
        "    return [0] + rest",
        "torch.OutOfMemoryError: CUDA out of memory",
        "Error: it is full",
        "exitcode  : -9 (pid: 4242)",
    ],
)
def test_what_is_no_prefix_stays(line: str) -> None:
    assert strip(line).text == line


def test_what_a_traceback_is_indented_by_stays() -> None:
    for prefix in ("[rank0]: ", "[default0]:", "0: ", "2026-11-21T10:00:00Z ", "Rank 0: "):
        assert strip(f'{prefix}  File "train.py", line 3').text == '  File "train.py", line 3'


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-11-21 10:00:00,123 x", "2026-11-21 10:00:00,124 x"),
        ("2026-11-30T10:00:00Z x", "2026-12-01T09:00:00Z x"),
        ("W1121 10:00:00.123000 4242 a.py:1] x", "E1121 10:00:01.000000 4242 a.py:1] x"),
        ("Nov 30 10:00:00 host python[1]: x", "Dec  1 00:00:00 host python[1]: x"),
    ],
)
def test_stamps_of_a_kind_are_in_the_order_of_time(earlier: str, later: str) -> None:
    first, second = strip(earlier).time, strip(later).time
    assert first is not None
    assert second is not None
    assert first.kind == second.kind
    assert first.seconds < second.seconds
