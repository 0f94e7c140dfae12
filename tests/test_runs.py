"""Running studies: what is done is not redone, what fails takes nothing with it, and however a run ends, the next goes on."""

import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from squareloss.lab.runs import Cell, Job, Outcome, Result, Store, StoreError, execute, schedule
from squareloss.lab.runs import engines as engines_module
from squareloss.lab.runs.execute import _needs, check_device
from squareloss.lab.runs.leases import Leases
from squareloss.lab.runs.live import Listener
from toy_study import Toy


@pytest.fixture
def toy(tmp_path):
    return lambda **options: Toy(tmp_path / "log.txt", **options)


def squares(outcome):
    return {(r.cell, r.seed): r.metrics["square"] for r in outcome.records}


def expected(cells, seeds):
    return {(f"cell{i}", s): i**2 + s for i in range(cells) for s in seeds}


ENGINES = ["local", "processes"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_study_is_run_once_and_then_skipped(toy, tmp_path, engine):
    study = toy(cells_=3)
    outcome = execute(study, "smoke", [0, 7], tmp_path / "r", engine, workers=2)
    assert squares(outcome) == expected(3, [0, 7]) and outcome.new == 6 and outcome.message() == ""
    again = execute(study, "smoke", [0, 7], tmp_path / "r", engine, workers=2)
    assert again.records == outcome.records and again.new == 0
    more = execute(study, "smoke", [0, 7, 8], tmp_path / "r", "local")
    assert more.new == 3 and set(study.attempts().values()) == {1}
    assert list((tmp_path / "r" / ".leases").iterdir()) == []
    if engine == "processes":
        assert {r.metrics["threads"] for r in outcome.records} == {1}, "workers share the cores"


def test_force_does_all_again(toy, tmp_path):
    study, scratch = toy(cells_=2), tmp_path / "r" / ".scratch"
    execute(study, "smoke", [0], tmp_path / "r")
    (scratch / Job(study.cells("smoke")[0], 0).key).mkdir(parents=True)
    assert execute(study, "smoke", [0], tmp_path / "r", force=True).new == 2
    assert set(study.attempts().values()) == {2} and list(scratch.iterdir()) == []


def test_force_goes_on_from_no_checkpoint(tmp_path):
    class Leaving:
        name, summary, cost = "leaving", "", {"smoke": "seconds"}

        def cells(self, scale):
            return [Cell("leave", {"task": "leave"})]

        def run(self, jobs, context):
            yield Result(jobs[0], {"found": len(list(context.scratch(jobs[0]).iterdir()))})

    for force, found in ((False, 1), (True, 0)):
        left = tmp_path / str(force) / ".scratch" / Job(Leaving().cells("smoke")[0], 0).key
        left.mkdir(parents=True)
        (left / "checkpoint").touch()
        outcome = execute(Leaving(), "smoke", [0], tmp_path / str(force), force=force)
        assert outcome.records[0].metrics == {"found": found}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_result_whose_lease_was_lost_is_written_unless_whoever_took_it_over_did_so(toy, tmp_path, force, meanwhile):
    study, store = toy(cells_=1), Store(tmp_path / "r")
    (job,) = (Job(cell, 0) for cell in study.cells("smoke"))
    if force:
        store.write("toy", Result(job, {"square": -1}))
    ours = schedule.Schedule(study, store, Listener(), force)
    assert ours.plan([job]) == [job]
    with Leases(tmp_path / "r" / ".leases") as leases:
        ours.leases = leases  # which holds nothing
        if meanwhile:
            store.write("toy", Result(job, {"square": 1}))
        ours._finish(Result(job, {"square": 2}))
    assert store.read("toy", job).metrics == {"square": 1 if meanwhile else 2} and ours.new == (not meanwhile)


def test_equal_cells_of_two_studies_are_run_once(toy, tmp_path):
    first, second = toy(cells_=2), toy(cells_=3, name="other")
    execute(first, "smoke", [0], tmp_path / "r")
    outcome = execute(second, "smoke", [0], tmp_path / "r")
    assert outcome.new == 1 and squares(outcome) == expected(3, [0]) and {r.study for r in outcome.records} == {"other"}
    assert set(first.attempts().values()) == {1}


def test_force_takes_nothing_over_from_another_study(toy, tmp_path):
    first, second = toy(cells_=2), toy(cells_=2, name="other")
    execute(first, "smoke", [0], tmp_path / "r")
    assert execute(second, "smoke", [0], tmp_path / "r", force=True).new == 2
    assert set(first.attempts().values()) == {2}


def test_what_another_process_has_done_since_the_plan_is_not_done_again(toy, tmp_path):
    study, store, notes = toy(cells_=2), Store(tmp_path / "r"), Notes()
    ours = schedule.Schedule(study, store, notes)
    jobs = ours.plan([Job(cell, 0) for cell in study.cells("smoke")])
    store.write("toy", Result(jobs[0], {"square": 7}))
    engine = engines_module.Local(schedule.StudyWork(study, store.scratch), ours.on_event)
    with Leases(tmp_path / "r" / ".leases") as leases:
        ours.run(jobs, engine, leases)
    assert study.attempts() == {"cell1/seed0": 1} and (ours.new, notes.done) == (1, 2)
    assert list((tmp_path / "r" / ".leases").iterdir()) == []


class Wide(Toy):
    """Its cells want two cores, three, and so on, and more and more of a GPU."""

    def cells(self, scale):
        return [replace(cell, cpus=2 + i, gpus=i / 2) for i, cell in enumerate(super().cells(scale))]


def test_a_job_has_the_cores_that_its_cell_asks_for(tmp_path):
    study = Wide(tmp_path / "log.txt", cells_=2)
    outcome = execute(study, "smoke", [0], tmp_path / "r", "processes", workers=1)
    assert {r.cell: r.metrics["threads"] for r in outcome.records} == {"cell0": 2, "cell1": 3}
    assert _needs(study, "smoke") == (3, 0.5)


def test_the_device_that_is_asked_for_is_that_of_all_jobs(tmp_path, monkeypatch):
    class Placed(Wide):
        def run(self, jobs, context):
            yield Result(jobs[0], {"device": context.device}, machine={"versions": {}, "hardware": {}})

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for device, found in ((None, ["cpu", "cuda"]), ("cpu", ["cpu", "cpu"]), ("cuda", ["cuda", "cuda"])):
        study = Placed(tmp_path / "log.txt", cells_=2)
        outcome = execute(study, "smoke", [0], tmp_path / str(device), device=device)
        assert [r.metrics["device"] for r in outcome.records] == found


def test_a_gpu_may_be_asked_for_where_there_is_none_if_jobs_run_elsewhere(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check_device("cuda", elsewhere=True)
    with pytest.raises(ValueError, match="got cuda where torch finds no GPU"):
        check_device("cuda")


def test_a_group_runs_in_one_call_and_its_rest_in_another(toy, tmp_path):
    study = toy(cells_=3, group="all")
    execute(study, "smoke", [0], tmp_path / "r")
    outcome = execute(study, "smoke", [0, 1], tmp_path / "r")
    assert squares(outcome) == expected(3, [0, 1])
    assert [line for line in study.lines() if line.startswith("call")] == ["call 3", "call 3"]


def test_a_study_that_changes_a_spec_is_told_so(toy, tmp_path):
    """Its result would lie there with a spec that is not the one of its hash, and be a damaged one."""
    study = toy(cells_=2)
    plain = study.run

    def changing(jobs, context):
        for job in jobs:
            if job.cell.name == "cell1":
                job.cell.spec["steps"] = 100
            yield from plain([job], context)

    study.run = changing
    outcome = execute(study, "smoke", [0], tmp_path / "r")
    assert [r.cell for r in outcome.records] == ["cell0"] and outcome.new == 1
    assert "expected the spec of cell1/seed0 as it was planned, got one that the study has changed" in outcome.message()


@pytest.mark.parametrize(("group", "error"), [("", "ZeroDivisionError: no luck"), ("all", "ZeroDivisionError: no luck")])
def test_a_job_that_raises_takes_no_other_with_it(toy, tmp_path, group, error):
    study, notes = toy(tricks=(("cell1", "raise"),), group=group), Notes()
    outcome = execute(study, "smoke", [0], tmp_path / "r", progress=notes)
    assert {r.cell for r in outcome.records} == {"cell0", "cell2", "cell3"} and outcome.new == 3
    (failure,) = outcome.failures
    assert failure.job.name == "cell1/seed0" and failure.error.startswith(error)
    assert f"cell1/seed0 failed: {failure.error}" in notes.notes and (notes.done, notes.broken) == (3, 1)
    assert "Traceback" in failure.log.read_text() and str(failure.log) in outcome.message()
    assert list((tmp_path / "r" / ".leases").iterdir()) == []
    mended = execute(toy(), "smoke", [0], tmp_path / "r")
    assert mended.new == 1 and not mended.failures and not failure.log.exists()


def test_a_study_that_forgets_a_job_or_does_another_is_told(toy, tmp_path):
    outcome = execute(toy(tricks=(("cell1", "drop"),)), "smoke", [0], tmp_path / "r")
    assert "ended without a result for cell1/seed0" in outcome.message() and outcome.new == 3

    class Wrong(Toy):
        def run(self, jobs, context):
            yield Result(Job(Cell("x", {"task": "x"}), 0), {})

    outcome = execute(Wrong(tmp_path / "log.txt", name="wrong", cells_=1), "smoke", [0], tmp_path / "q")
    assert "gave a result for x/seed0, which it had not to do" in outcome.message() and outcome.new == 0


def test_the_time_of_a_result_is_its_own_or_that_since_the_last(tmp_path):
    class Timed(Toy):
        def run(self, jobs, context):
            for job, (nap, seconds) in zip(jobs, ((0.5, None), (0.0, None), (0.0, 1000.0)), strict=True):
                time.sleep(nap)
                yield Result(job, {}, seconds=seconds)

    study = Timed(tmp_path / "log.txt", cells_=3, group="all")
    first, second, third = (r.seconds for r in execute(study, "smoke", [0], tmp_path / "r").records)
    assert 0.5 <= first and second < first and third == 1000


def test_scratch_lies_with_the_results_where_they_can_be_seen(toy, tmp_path):
    here = schedule.StudyWork(toy(), tmp_path / "r" / ".scratch")
    assert here._root() == Path(tempfile.gettempdir(), "squareloss-scratch"), "a node that does not share the folder"
    (tmp_path / "r").mkdir()
    assert here._root() == tmp_path / "r" / ".scratch"


def test_an_error_of_several_lines_is_named_by_its_first(tmp_path):
    class Wordy(Toy):
        def run(self, jobs, context):
            raise RuntimeError("CUDA error: out of memory\nFor debugging consider this.\n" + 100 * "Compile with that. ")

    (failure,) = execute(Wordy(tmp_path / "log.txt", name="wordy", cells_=1), "smoke", [0], tmp_path / "r").failures
    assert failure.error.startswith("RuntimeError: CUDA error: out of memory For debugging consider this. Compile with")
    assert len(failure.error) <= 300 and failure.error.endswith(" ...")
    assert 100 * "Compile with that. " in failure.log.read_text()


def test_many_failures_make_a_short_message(toy, tmp_path):
    outcome = execute(toy(cells_=25, tricks=tuple((f"cell{i}", "raise") for i in range(25))), "smoke", [0], tmp_path / "r")
    assert len(outcome.failures) == 25 and outcome.message().splitlines()[-1] == "and 15 more failed"
    alike = Outcome([], 0, [replace(failure, error="no data") for failure in outcome.failures])
    assert alike.message().startswith("cell0/seed0 and 24 more failed: no data (see ") and "\n" not in alike.message()
    assert replace(alike, failures=alike.failures[:2]).message().startswith("cell0/seed0 and 1 more failed: no data")


class Notes(Listener):
    def __init__(self):
        super().__init__()
        self.notes = []

    def show(self, text=None):
        self.notes += [text] if text else []


def test_a_damaged_result_is_moved_aside_and_done_again(toy, tmp_path):
    study, store, notes = toy(cells_=2), Store(tmp_path / "r"), Notes()
    execute(study, "smoke", [0], store)
    job = Job(study.cells("smoke")[1], 0)
    path = store.path("toy", job)
    path.write_text(path.read_text()[:80])
    assert schedule.Schedule(study, store, notes).plan([job]) == [job] and path.exists(), "without its lease it stays"
    outcome = execute(study, "smoke", [0], store, progress=notes)
    assert (
        outcome.new == 1 and squares(outcome) == expected(2, [0]) and study.attempts() == {"cell0/seed0": 1, "cell1/seed0": 2}
    )
    assert len(path.with_name("seed0.json.corrupt").read_text()) == 80
    assert any(str(path) in note and "seed0.json.corrupt" in note for note in notes.notes)


def test_errors_of_options_come_before_anything_runs(toy, tmp_path):
    with pytest.raises(ValueError, match="Unknown engine 'cloud'. Available: local, processes, ray"):
        execute(toy(), "smoke", [0], tmp_path / "r", "cloud")
    with pytest.raises(ValueError, match="address with engine"):
        execute(toy(), "smoke", [0], tmp_path / "r", address="auto")
    with pytest.raises(ValueError, match="one worker or more, got 0"):
        execute(toy(), "smoke", [0], tmp_path / "r", "processes", workers=0)

    class Hidden(Toy):
        pass

    with pytest.raises(TypeError, match='can\'t be pickled.*engine="local"'):
        execute(Hidden(tmp_path / "log.txt"), "smoke", [0], tmp_path / "r", "processes")
    assert toy().lines() == []


def test_ray_that_is_not_installed(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "squareloss\[ray\]"'):
        execute(toy(), "smoke", [0], tmp_path / "r", "ray")


def test_ctrl_c_leaves_what_is_finished_and_no_lease(toy, tmp_path):
    study = toy(tricks=(("cell2", "interrupt"),))
    with pytest.raises(KeyboardInterrupt):
        execute(study, "smoke", [0], tmp_path / "r")
    assert [r.cell for r in Store(tmp_path / "r").records()] == ["cell0", "cell1"]
    assert list((tmp_path / "r" / ".leases").iterdir()) == []
    assert execute(toy(), "smoke", [0], tmp_path / "r").new == 2


def test_a_lease_is_held_until_the_engine_has_stopped(toy, tmp_path, monkeypatch):
    """A worker that still saves its checkpoint must not meet whoever gets the job next."""
    held = []
    monkeypatch.setattr(engines_module.Local, "__exit__", lambda *_: held.extend(os.listdir(tmp_path / "r" / ".leases")))
    study = toy(cells_=2, tricks=(("cell1", "interrupt"),))
    with pytest.raises(KeyboardInterrupt):
        execute(study, "smoke", [0], tmp_path / "r")
    assert held == [f"{Job(study.cells('smoke')[1], 0).key}.0"] and list((tmp_path / "r" / ".leases").iterdir()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that were open just then
def test_ctrl_c_may_come_anywhere(toy, tmp_path):
    """Before every single line of `lab/runs`: no lease and no half a file stays, and what is recorded is whole."""
    package, left, hit = str(Path(schedule.__file__).parent), [0], []

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(package):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                hit.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                signal.raise_signal(signal.SIGINT)
        return trace

    for line in range(1, 10_000):
        left[0], folder, previous = line, tmp_path / str(line), signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(trace)
        try:
            execute(toy(cells_=1), "smoke", [0], folder)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, previous)
        if left[0] > 0:  # the run was over before
            break
        files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        assert all(name.endswith("seed0.json") for name in files), f"{files} after Ctrl-C at {hit[-1]}"
        assert len(Store(folder).records()) == len(files)
    assert len(set(hit)) > 100 and left[0] > 0


class Failing(Store):
    """A store whose disk is full after two results."""

    def write(self, study, result):
        if len(self.records(study)) == 2:
            raise StoreError("could not write: the disk is full")
        return super().write(study, result)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_disk_stops_the_run_and_keeps_the_rest(toy, tmp_path, engine):
    store = Failing(tmp_path / "r")
    with pytest.raises(StoreError, match="the disk is full"):
        execute(toy(), "smoke", [0], store, engine, workers=1)
    assert len(store.records()) == 2 and list((tmp_path / "r" / ".leases").iterdir()) == []
    assert execute(toy(), "smoke", [0], tmp_path / "r").new == 2


def test_a_folder_that_can_not_be_written_to_is_told_before_anything_runs(toy, tmp_path, monkeypatch):
    def refuse(self):
        raise StoreError("no room")

    monkeypatch.setattr(Store, "check_writable", refuse)
    with pytest.raises(StoreError, match="no room"):
        execute(toy(), "smoke", [0], tmp_path / "r")
    assert toy().lines() == []


class Vanishing(Toy):
    """Its results folder is deleted while its second job runs."""

    def run(self, jobs, context):
        if len(self.lines()) > 2:
            shutil.rmtree(self.log.parent / "r")
        yield from super().run(jobs, context)


def test_a_folder_that_is_deleted_meanwhile_stops_the_run_with_a_word(tmp_path):
    with pytest.raises(StoreError, match="the folder was deleted or moved meanwhile; start again"):
        execute(Vanishing(tmp_path / "log.txt"), "smoke", [0], tmp_path / "r")
    assert len(Store(tmp_path / "r").records()) == 1, "what was just finished is kept all the same"
    assert execute(Toy(tmp_path / "log.txt"), "smoke", [0], tmp_path / "r").new == 3


def test_a_job_may_go_on_from_its_scratch(tmp_path):
    class Counting:
        name, summary, cost = "counting", "", {"smoke": "seconds"}

        def cells(self, scale):
            return [Cell("count", {"task": "count"})]

        def run(self, jobs, context):
            (job,) = jobs
            note = context.scratch(job) / "reached"
            start = int(note.read_text()) if note.exists() else 0
            for step in range(start, 4):
                if step == 2 and start == 0:
                    raise RuntimeError("killed")
                note.write_text(str(step + 1))
            yield Result(job, {"from": start})

    assert execute(Counting(), "smoke", [0], tmp_path).failures
    assert execute(Counting(), "smoke", [0], tmp_path).records[0].metrics == {"from": 2}
    assert list((tmp_path / ".scratch").iterdir()) == [], "a result removes the scratch"


# ---- the pool --------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_replaced_and_its_job_done_again(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "ATTEMPTS", 2)
    study, notes = toy(cells_=5, tricks=(("cell1", "die once"), ("cell3", "die"))), Notes()
    outcome = execute(study, "smoke", [0], tmp_path / "r", "processes", workers=2, progress=notes)
    assert {r.cell for r in outcome.records} == {"cell0", "cell1", "cell2", "cell4"}
    (failure,) = outcome.failures
    assert failure.job.cell.name == "cell3" and "killed by SIGKILL" in failure.error and "tried 2 times" in failure.error
    assert study.attempts()["cell1/seed0"] == 2 and study.attempts()["cell3/seed0"] == 2
    assert sum(note.startswith("cell1/seed0: its process was killed by SIGKILL: perhaps") for note in notes.notes) == 1
    assert list((tmp_path / "r" / ".leases").iterdir()) == []


def test_a_killed_group_is_done_again_one_by_one(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "ATTEMPTS", 2)
    study = toy(cells_=3, group="all", tricks=(("cell1", "die"),))
    outcome = execute(study, "smoke", [0], tmp_path / "r", "processes", workers=1)
    assert {r.cell for r in outcome.records} == {"cell0", "cell2"} and [f.job.cell.name for f in outcome.failures] == ["cell1"]
    assert study.attempts()["cell0/seed0"] == 1, "what the group had finished is not redone"


def test_a_group_is_split_over_idle_workers(toy, tmp_path):
    jobs = [Job(cell, 0) for cell in toy(cells_=5, group="all").cells("smoke")]
    alone = [Job(cell, 1) for cell in toy(cells_=2).cells("smoke")]
    assert [len(b) for b in schedule._batches(jobs, 1)] == [5] and [len(b) for b in schedule._batches(jobs, 2)] == [3, 2]
    assert [len(b) for b in schedule._batches(jobs, 9)] == [1] * 5 and [len(b) for b in schedule._batches(jobs + alone, 2)] == [
        5,
        1,
        1,
    ]
    assert schedule._batches([], 2) == []
    two = [Job(replace(job.cell, group=f"g{i % 2}"), 0) for i, job in enumerate(jobs)]
    for parallel in range(1, 8):
        assert len(schedule._batches(two, parallel)) >= min(parallel, len(two)), "no worker idles while a group could be split"
