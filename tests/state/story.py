"""Events of a run as their writers write them, told to its state one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rundir.errors import ExitCode
from rundir.events import Event, EventWriter, read_events
from state.run_state import RunState, new_state

REAL, GONE = "CUDA out of memory", "[gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1"
PLAN = {
    "total_steps": 10,
    "first_step": 0,
    "num_parameters": 1,
    "num_trainable": 1,
    "num_train_samples": 1,
    "num_eval_samples": 1,
}
TRAIN = {
    "lr": 1e-4,
    "grad_norm": 1.0,
    "tokens_per_s": 50.0,
    "time_data_s": 0.0,
    "time_forward_s": None,
    "time_backward_s": None,
    "time_comm_s": 0.0,
    "time_optimizer_s": None,
}


class Story:
    """Events as their writers write them, at times of the test's choosing, applied to a state."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self._folder, self._num_told, self._clock = folder, 0, 100.0
        self.attempt = 0  # the attempt of the next events
        self.state = new_state("run", "tiny", num_ranks)

    def tell(
        self, kind: str, name: str, rank: int | None = None, t: float | None = None, **fields: Any
    ) -> Event:
        folder = self._folder / str(self._num_told)
        folder.mkdir()
        writer = EventWriter(folder / "a.jsonl", rank=rank, attempt=self.attempt)
        writer.emit(kind, name, **fields)
        (event,) = read_events(folder)
        self._num_told += 1
        self._clock = self._clock + 1 if t is None else t
        event |= {"t": self._clock, "mono": self._clock}
        self.state.add(event)
        return event

    def raised(self, rank: int, message: str, code: ExitCode = ExitCode.RANK_FAILED) -> None:
        self.tell(
            "error",
            "rank.exception",
            rank,
            exception="RuntimeError",
            message=message,
            traceback=f"Traceback of {rank}",
            exit_code=int(code),
        )

    def exited(self, rank: int, exitcode: int, signal: str | None) -> None:
        self.tell(
            "error",
            "rank.exit",
            failed_rank=rank,
            exitcode=exitcode,
            signal=signal,
        )

    def train(
        self, step: int, *, t: float | None = None, loss: float = 1.0, mfu: float | None = None
    ) -> Event:
        return self.tell("metric", "train", 0, t, step=step, loss=loss, mfu=mfu, **TRAIN)


def root(state: RunState) -> tuple[int | None, str]:
    failure = state.root_failure()
    assert failure is not None
    return failure.rank, failure.title
