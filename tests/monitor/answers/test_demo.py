"""The demo: runs to look at before anything has been trained."""

from __future__ import annotations

from monitor.answers.demo import demo_folder
from rundir.config_file import read_config
from rundir.events import read_events
from rundir.owner import is_owned
from rundir.paths import RunDir
from rundir.schema import spec_of
from rundir.status import read_status
from tests.monitor.answers.made import client


def test_the_demo_answers_before_anyone_has_trained_and_leaves_nothing() -> None:
    with demo_folder() as folder:
        asked = client(folder)
        answer = asked.get("/api/evolution/evolution_demo/snapshot/10")
        assert answer.status_code == 200
        assert answer.json()["training_step"] == 10
        assert answer.json()["dataset"]["name"] == "evolution_demo"
        steps = asked.get("/api/evolution/evolution_demo/snapshots").json()["snapshots"]
        right = [one["summary"]["accuracy"] for one in steps]
        assert right[0] == 0
        assert right[-1] > 0.7
        counts = asked.get("/api/evolution/evolution_demo/examples").json()["counts"]
        assert all(counts.values()), "each filter has something to show"
        (row,) = asked.get("/api/evolution/datasets").json()["datasets"]
        assert len(row["runs"]) == 2
    assert not folder.exists()


def test_its_runs_are_run_folders_like_all_others() -> None:
    with demo_folder() as folder:
        runs = [RunDir(path) for path in folder.iterdir() if not path.is_symlink()]
        assert [read_status(run)["exit_code"] for run in sorted(runs, key=str)] == [20, 0]
        for run in runs:
            assert read_config(run.config).launch.num_ranks == 8
            assert not is_owned(run)
            events = read_events(run.events)
            for event in events:
                spec = spec_of(event["kind"], event["name"])
                assert set(spec.fields) <= set(event)
            names = {event["name"] for event in events}
            assert {"lock.wait", "pg.init", "train", "gpu", "host", "evolution"} <= names
            assert "demo" in run.run_log.read_text()
        assert (folder / "latest").resolve() == max(runs, key=str).path.resolve()
