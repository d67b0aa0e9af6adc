"""The GPUs of a run as people see them: on the line of a step, in a warning, and at its end."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.run.supervise.event_lines import plain_line
from launch.run.supervise.incident_text import verdict_text
from launch.run.supervise.report import report
from machine.gpus.devices import Gpu
from machine.gpus.gpu_samples import GpuSample, GpuSampler, Silence
from rundir.errors import ExitCode
from rundir.events import Event, EventWriter
from rundir.paths import RunDir
from state.follow import Follower
from state.run_state import new_state
from tests.launch.track.runs import MadeRun
from tests.state.story import PLAN, Story

GIB = 1 << 30
LONGEST_S = 30.0


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path, 2)


def tell(story: Story, index: int = 0, **fields: Any) -> Event:
    usual: dict[str, Any] = {
        "used_bytes": 71 * GIB,
        "total_bytes": 80 * GIB,
        "utilization_percent": 98,
        "temperature_c": 64,
        "power_w": 690.4,
        "power_limit_w": 700.0,
        "slowed_by": ["power cap"],
    }
    return story.tell("metric", "gpu", index=index, **(usual | fields))


def ended(story: Story, folder: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    report(console, RunDir(folder), story.state, ExitCode.DONE)
    written: Any = console.file
    return str(written.getvalue())


def test_the_line_of_a_step_tells_the_fullest_the_idlest_the_hottest_and_all_power(
    story: Story,
) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    tell(story, 0, used_bytes=60 * GIB, temperature_c=71)
    tell(story, 1, utilization_percent=12)
    line = plain_line(story.state, story.train(1))
    assert line is not None
    assert "tokens/s  gpu 71.0/80.0 GiB 12% 71 °C 1,381 W" in line


def test_a_step_on_cpu_says_nothing_of_gpus(story: Story, tmp_path: Path) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    assert "gpu" not in str(plain_line(story.state, story.train(1)))
    assert "GPUs" not in ended(story, tmp_path)


def test_what_a_gpu_does_not_report_is_left_out_of_the_line(story: Story) -> None:
    story.tell("mark", "train.plan", 0, **PLAN)
    null = ("utilization_percent", "temperature_c", "power_w", "power_limit_w", "slowed_by")
    tell(story, 0, **dict[str, Any](dict.fromkeys(null)))
    assert str(plain_line(story.state, story.train(1))).endswith("tokens/s  gpu 71.0/80.0 GiB")


def test_a_gpu_that_stays_slowed_down_is_warned_of_once(story: Story) -> None:
    hot = {"slowed_by": ["power cap", "too hot (hardware)"], "temperature_c": 92}
    said = [plain_line(story.state, tell(story, 1, **hot)) for _ in range(6)]
    assert [text is not None for text in said] == [False, False, True, False, False, False]
    assert "GPU 1 runs slowed down (too hot (hardware), 92 °C)" in str(said[2])
    assert "→ nvidia-smi -q -i 1" in str(said[2])


def test_a_moment_of_heat_and_the_usual_power_cap_are_no_warning(story: Story) -> None:
    hot: dict[str, Any] = {"slowed_by": ["too hot (driver)"]}
    said = [plain_line(story.state, tell(story, 0, **one)) for one in (hot, hot, {}, hot, {})]
    said += [plain_line(story.state, tell(story)) for _ in range(5)]
    assert said == [None] * 10


def test_the_end_tells_peak_mean_and_how_long_clocks_were_lowered(
    story: Story, tmp_path: Path
) -> None:
    tell(story, utilization_percent=0)  # before the training: loading
    story.tell("mark", "train.plan", 0, **PLAN)
    tell(story, utilization_percent=90, used_bytes=75 * GIB)
    tell(story, utilization_percent=100, temperature_c=80, slowed_by=["power brake"])
    tell(story, utilization_percent=95)
    said = ended(story, tmp_path)
    assert "GPUs          peak 75.0 of 80.0 GiB; 95% busy in training; up to 80 °C; " in said
    assert "GPU 0 slowed down for 0:01: power brake" in said


def test_the_files_of_a_failed_run_show_each_gpu(story: Story, tmp_path: Path) -> None:
    tell(story, 0, used_bytes=79 * GIB)
    tell(story, 0, slowed_by=["hardware slowdown"])
    tell(story, 3, power_w=None)
    story.raised(0, "CUDA out of memory")
    (tmp_path / "made").mkdir()
    text = verdict_text(MadeRun(tmp_path / "made").run, story.state, None, tmp_path)
    assert "## GPUs" in text
    row = f"| 0 | {71 * 1024:,} | {79 * 1024:,} | {80 * 1024:,} | 98 | 64 | 690.4 |"
    assert f"{row} hardware slowdown |" in text
    assert f"| 3 | {71 * 1024:,} | {71 * 1024:,} | {80 * 1024:,} | 98 | 64 |  | power cap |" in text


def test_a_silent_gpu_and_a_silent_driver_are_told(story: Story) -> None:
    gpu = story.tell("mark", "gpu.silent", index=3, why="GPU is lost")
    assert "GPU 3 does not answer any more: GPU is lost" in str(plain_line(story.state, gpu))
    driver = story.tell("mark", "gpu.silent", index=None, why="nothing for 30 s")
    assert "the NVIDIA driver does not answer any more" in str(plain_line(story.state, driver))


def test_the_launcher_writes_samples_and_silence_into_the_run_folder(tmp_path: Path) -> None:
    def ask(gpu: Gpu) -> GpuSample | Silence:
        known = GpuSample(index=4, used_bytes=1, total_bytes=2, slowed_by=("power cap",))
        return known if gpu.index == 4 else Silence(gpu.index, "GPU is lost")

    run = MadeRun(tmp_path).run
    sampler = GpuSampler([Gpu(i, f"GPU-{i}", "", 2) for i in (4, 5)], every_s=0.01, ask=ask)
    state = new_state("run", "tiny", 1)
    follower = Follower(run, state, EventWriter(run.event_file("launch")), sampler)
    seen, deadline = list[Event](), time.monotonic() + LONGEST_S
    while len(state.gpus) < 1 or not any(one["name"] == "gpu.silent" for one in seen):
        assert time.monotonic() < deadline
        follower.write_when_due()
        new = follower.new_events()
        follower.take_in(new)
        seen += new
    follower.stop_sampling()
    assert state.gpus[4].last["slowed_by"] == ["power cap"]
    assert [one["index"] for one in seen if one["name"] == "gpu.silent"] == [5]
