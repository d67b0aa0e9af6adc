"""An exception that no rule knows stays the verdict, whatever follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.logs.diagnosis import diagnose

CALLS = """Traceback (most recent call last):
  File "/workspace/train.py", line 71, in main
    trainer.train()
"""
LONG = "RuntimeError: the plan of layer 7 has no room for the third of four experts of its router"
RAISED = ["AssertionError", "ValueError: odd", LONG, "Exception: odd\n  in two lines"]
TAILS = {
    "srun": "srun: error: gn07: task 2: Exited with exit code 1\nsrun: error: gn07: task 3: Killed",
    "srun-137": "srun: error: gn07: task 0: Exited with exit code 137",
    "bash": "/var/spool/slurmd/slurm_script: line 22: 77012 Killed    torchrun train.py",
    "torchrun": "ERROR:torch.distributed.elastic:failed (exitcode: 1) local_rank: 2 (pid: 77)",
    "deepspeed": "[launch.py:325:sigkill_handler] ['python', 'a.py'] exits with return code = 1",
    "deepspeed-kill": "[launch.py:319:sigkill_handler] Killing subprocess 4242",
    "abort": "Fatal Python error: Aborted\n\nThread 0x00007f (most recent call first):",
    "watchdog": "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
    "ray": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "make": "make: *** [Makefile:12: train] Error 1",
    "compose": "trainer-1 exited with code 1",
}


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("tail", TAILS)
def test_what_stands_below_an_exception_is_not_taken_for_it(
    tail: str, raised: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{CALLS}{raised}\n{TAILS[tail]}\n", encoding="utf-8")
    verdict = diagnose([str(log)])
    assert (verdict.cause, verdict.evidence[0].line) == ("python-exception", 4)


@pytest.mark.parametrize(
    "tail",
    [
        "Starting training...\n",
        "2026-01-01 10:00:00 INFO trainer: Starting training…\n\n",
        """***** Running training *****
  Num examples = 512
  Num Epochs = 3
  Total optimization steps = 192
  Number of trainable parameters = 1,048,576
  0%|          | 0/192 [00:00<?, ?it/s]""",
        "training 1,024 of 1,024 parameters, 64 samples, 100 steps\n",
    ],
)
def test_a_log_that_ends_where_training_begins_may_be_of_a_hang(tail: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("Loading the model\nUsing device: mps\n" + tail)
    verdict = diagnose([str(log)])
    assert (verdict.cause, verdict.certainty) == ("hang", "possible")
    assert verdict.evidence[0].line == 3
    assert "doctor --pid" in verdict.fix
    assert "num_workers=0" in verdict.fix
    log.write_text("Loading the model\n" + tail + "\n{'loss': 2.31, 'epoch': 0.1}\n")
    assert diagnose([str(log)]).cause == "unknown"
