"""The watchdog of a rank does no harm to scripts that fork, compile, or leave threads behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rundir.paths import RunDir
from rundir.pulse import PulseState, read_pulse
from tests.running import User, events_of, rank_pids
from tests.scripts import JOIN, script

_SCRIPT = f"""{JOIN}
import pathlib, signal, threading, time
from torch.utils.data import DataLoader

class Names:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return [one.name for one in threading.enumerate()]

def forked(what):
    child = os.fork()
    if child == 0:
        what()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def look_at_the_pulse_of_a_stopped_rank():
    pulse, parent = pathlib.Path(os.environ["RUN"], "progress", f"rank{{rank}}"), os.getppid()
    os.kill(parent, signal.SIGSTOP)
    time.sleep(1.5)
    before = pulse.read_bytes()
    time.sleep(2.5)
    has_changed = pulse.read_bytes() != before
    os.kill(parent, signal.SIGCONT)
    os._exit(has_changed)

def busy():
    while True:
        sum(range(1000))

for names in DataLoader(Names(), batch_size=None, num_workers=2):
    assert not any("airlock" in name for name in names), names
if rank == 0:
    assert forked(look_at_the_pulse_of_a_stopped_rank) == 0, "a fork writes the pulse"
    assert forked(lambda: sys.exit(3)) == 3
torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3))
dist.barrier()
for _ in range(2):
    threading.Thread(target=busy, daemon=True).start()
print("done", rank)
"""


@pytest.mark.parametrize("start", ["warm", pytest.param("cold", marks=pytest.mark.long)])
def test_a_script_that_forks_compiles_and_leaves_threads_behind_ends_as_ever(
    user: User, start: str
) -> None:
    env = {"RUN": str(Path(user.environ["AIRLOCK_RUNS_DIR"]) / "latest")}
    args = ("--num-gpus", "2", "--set", f"launch.start={start}", "--set", "launch.admit=open")
    code, out, err = user.finish("run", *args, script(user.folder, _SCRIPT), env=env)
    assert code == 0, out + err
    run = user.run()
    assert not events_of(run, "error", "rank.exit"), out
    assert "the watchdog cannot see" not in out
    assert "Fatal Python error" not in out + err
    for rank, pid in rank_pids(run).items():
        pulse = _pulse(run, rank)
        assert pulse.pid == pid
        assert pulse.left is not None
        assert (pulse.left.how, pulse.left.code) == ("ended", 0)


def _pulse(run: RunDir, rank: int) -> PulseState:
    pulse = read_pulse(run.pulse(rank))
    assert pulse is not None
    return pulse
