"""The events of the demo's runs: eight ranks on their way through the gate, and what they train."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from typing import Any

from monitor.answers.demo_answers import STEPS
from rundir.paths import RunDir
from rundir.schema import VERSION, spec_of

NUM_RANKS = 8
STEP_S = 7.1  # of one step
_GIB = 1 << 30
_READY_S = 322.0  # from the start of the run to the first step
_EVERY_S = 60.0  # between two measurements of the machine


@dataclass(slots=True)
class Log:
    """The events of one run that began at `started_t`; they are written at the end."""

    started_t: float
    lines: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def say(self, writer: str, at_s: float, kind: str, name: str, **fields: Any) -> None:
        """Note an event, `at_s` seconds after the start."""
        given = set(fields) - ({"duration_s", "ok"} if kind == "end" else set())
        assert given == set(spec_of(kind, name).fields), (name, given)
        rank = int(writer.removeprefix("rank")) if writer.startswith("rank") else None
        event: dict[str, Any] = {
            "v": VERSION,
            "t": self.started_t + at_s,
            "mono": 5000.0 + at_s,
            "node": 0,
        }
        event |= {"attempt": 0, "rank": rank, "pid": 4000 + (0 if rank is None else rank + 1)}
        line = json.dumps(event | {"kind": kind, "name": name, **fields})
        self.lines.setdefault(writer, []).append((at_s, line))

    def span(self, writer: str, begin_s: float, end_s: float, name: str, **fields: Any) -> None:
        """Note a span from `begin_s` to `end_s`."""
        self.say(writer, begin_s, "start", name, **fields)
        duration_s = round(end_s - begin_s, 3)
        self.say(writer, end_s, "end", name, duration_s=duration_s, ok=True, **fields)

    def write(self, run: RunDir) -> None:
        """Write the event files, each in order of time, and the ranks' logs."""
        run.events.mkdir(parents=True)
        run.rank_log(0, 0).parent.mkdir(parents=True)
        for writer, lines in self.lines.items():
            lines.sort(key=lambda line: line[0])
            text = "".join(line + "\n" for _, line in lines)
            run.event_file(writer).write_text(text, encoding="utf-8")
            if writer.startswith("rank"):
                logged = [json.loads(line) for _, line in lines if '"kind": "log"' in line]
                log = "".join(event["text"] + "\n" for event in logged)
                run.rank_log(int(writer[4:]), 0).write_text(log, encoding="utf-8")


def start_up(log: Log) -> None:
    """Note the way of all ranks to their first step: the first alone, then two at a time."""
    log.span("launch", 0.5, 21.0, "prepare", what="model and data")
    log.span("agent", 22.0, 22.0 + _READY_S, "spawn", num_ranks=NUM_RANKS)
    log.say("agent", 22.1, "mark", "attempt")
    log.say("agent", 22.2, "mark", "start", start="cold", reason=None)
    entered_s, ready_s = 0.0, 0.0
    for rank in range(NUM_RANKS):
        entered_s = 27.0 if rank == 0 else ready_s + 0.5 if rank % 2 else entered_s + 6.0
        ready_s = max(ready_s, _rank_loads(log, rank, entered_s))
    for rank in range(NUM_RANKS):
        writer = f"rank{rank}"
        log.span(writer, _end_of(log, writer), ready_s + 0.2, "all_loaded.wait")
        log.span(
            writer,
            ready_s + 0.2,
            ready_s + 4.1,
            "pg.init",
            address="127.0.0.1:29400",
            world_size=NUM_RANKS,
        )
        log.span(writer, ready_s + 4.1, ready_s + 5.6, "ddp.wrap")


def _end_of(log: Log, writer: str) -> float:
    return max(at_s for at_s, _ in log.lines[writer])


def _rank_loads(log: Log, rank: int, entered_s: float) -> float:
    writer, name = f"rank{rank}", f"[Rank {rank}]"

    def line(at_s: float, text: str) -> None:
        log.say(writer, at_s, "log", "line", text=f"{name} {text}")

    line(23.0, f"INIT: rank={rank}/{NUM_RANKS} local_rank={rank}")
    _memory(log, writer, 23.2, "mem.start", 0.4)
    if rank:
        line(23.4, "LOCK: waiting for exclusive access...")
        log.span(writer, 23.4, entered_s, "lock.wait")
    load_s = entered_s + 9.5 + rank * 0.2
    left_s = load_s + 51.0 + rank * 0.9
    log.span(writer, entered_s, left_s, "lock.hold")
    line(entered_s, "LOCK: acquired! Starting initialization...")
    log.span(writer, entered_s, load_s, "import")
    _memory(log, writer, load_s, "mem.post_import", 1.7)
    log.span(writer, load_s, left_s, "model.load")
    _memory(log, writer, left_s, "mem.post_model", 3.2, gpu_gib=61.6)
    line(left_s, "LOCK: released")
    return left_s


def _memory(log: Log, writer: str, at_s: float, name: str, gib: float, gpu_gib: float = 0) -> None:
    log.say(
        writer,
        at_s,
        "mark",
        name,
        rss_bytes=int(gib * 1.2 * _GIB),
        pss_anon_bytes=int(gib * _GIB),
        vms_bytes=int((gib + 60) * _GIB),
        host_available_bytes=int((480 - 3 * gib) * _GIB),
        gpu_used_bytes=int((gpu_gib + 0.6) * _GIB),
    )


def training(log: Log, draw: random.Random, *, steps: int, lr: float, learns: float) -> float:
    """Note what is measured in `steps` steps; return how many seconds after the start they end."""
    begin_s = 350.0
    for step in range(10, steps + 1, 10):
        at_s = begin_s + step * STEP_S
        _train(log, draw, at_s, step, lr * _schedule(step), learns)
        if step % 200 == 0:
            log.span("rank0", at_s + 0.1, at_s + 31.0, "eval", step=step)
            loss = 0.62 + 1.5 * math.exp(-step * learns / 260)
            log.say("rank0", at_s + 31, "metric", "eval", step=step, loss=loss, exact_match=None)
            log.span("rank0", at_s + 31.1, at_s + 35.2, "checkpoint", step=step)
        if step % 50 == 0:
            for rank in range(NUM_RANKS):
                _rank_times(log, draw, rank, at_s + 0.05, step)
    for minute in range(int((begin_s + steps * STEP_S) / _EVERY_S)):
        _machine(log, draw, minute * _EVERY_S)
    return begin_s + steps * STEP_S + 40


def _schedule(step: int) -> float:
    whole = STEPS[-1]
    return step / 60 if step < 60 else 0.5 * (1 + math.cos(math.pi * (step - 60) / (whole - 60)))  # noqa: PLR2004


def _train(log: Log, draw: random.Random, at_s: float, step: int, lr: float, learns: float) -> None:
    loss = loss_at(step, learns) + draw.gauss(0, 0.025)
    log.say(
        "rank0",
        at_s,
        "metric",
        "train",
        step=step,
        loss=loss,
        lr=lr,
        grad_norm=0.35 + 1.9 * math.exp(-step / 140) + abs(draw.gauss(0, 0.05)),
        tokens_per_s=17_900 + draw.gauss(0, 160),
        mfu=0.412 + draw.gauss(0, 0.004),
        time_data_s=0.012 + abs(draw.gauss(0, 0.003)),
        time_forward_s=2.05 + draw.gauss(0, 0.02),
        time_backward_s=4.72 + draw.gauss(0, 0.04),
        time_comm_s=0.09 + abs(draw.gauss(0, 0.02)),
        time_optimizer_s=0.11,
    )
    if step % 100 == 0:
        log.say("rank0", at_s, "log", "line", text=f"[Rank 0] step {step}: loss {loss:.3f}")


def loss_at(step: int, learns: float) -> float:
    """Return the training loss after `step` steps, without its noise."""
    return 0.55 + 0.75 * math.exp(-step * learns / 90) + 0.8 * math.exp(-step * learns / 600)


def _rank_times(log: Log, draw: random.Random, rank: int, at_s: float, step: int) -> None:
    wait_s = abs(draw.gauss(0.12, 0.05)) if rank != 5 else 0.02  # noqa: PLR2004 - the slowest rank
    log.say(
        f"rank{rank}",
        at_s,
        "metric",
        "train.rank",
        step=step,
        num_steps=10,
        time_data_s=0.011 + abs(draw.gauss(0, 0.002)),
        time_compute_s=STEP_S - wait_s - 0.1,
        time_wait_s=wait_s,
    )


def _machine(log: Log, draw: random.Random, at_s: float) -> None:
    loaded = min(1.0, max(0.0, (at_s - 30) / 290))
    log.say(
        "launch",
        at_s,
        "metric",
        "host",
        pss_bytes=int((2 + 30 * loaded) * _GIB),
        pss_anon_bytes=int((1.6 + 26 * loaded) * _GIB),
        num_processes=3 + int(9 * loaded),
        available_bytes=int((481 - 28 * loaded) * _GIB),
    )
    for index in range(NUM_RANKS):
        is_there = loaded * NUM_RANKS > index
        log.say(
            "launch",
            at_s,
            "metric",
            "gpu",
            index=index,
            used_bytes=int((71.5 + draw.gauss(0, 0.1) if is_there else 0.6) * _GIB),
            total_bytes=80 * _GIB,
            utilization_percent=int(min(100, draw.gauss(96, 2))) if loaded == 1 else 0,
            temperature_c=int(62 + index % 3 * 2 + draw.gauss(0, 1)) if loaded == 1 else 34,
            power_w=round(640 + draw.gauss(0, 12), 1) if loaded == 1 else 72.0,
            power_limit_w=700.0,
            slowed_by=[],
        )
