"""A study on a real Ray cluster of two nodes, one of which is killed while it works: every job ends exactly once."""

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from squareloss.lab.runs import Cell, Result, Store, execute, map_chunks, ray_engine
from squareloss.lab.runs.live import Listener

ray = pytest.importorskip("ray", reason="squareloss[ray] is not installed")
pytestmark = [
    # of ray's own: sockets and log files it leaves to the garbage collector, and plans for its next versions
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MEMORY = 80 << 20


def wait_for(condition, seconds=240.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


@dataclass
class Nodes:
    """Jobs that note in a folder where they begin. The first waits for the other node, and those on the victim are slow."""

    folder: Path
    victim: str
    jobs: int = 12
    name: str = "nodes"
    summary: str = "which node does what"
    cost = {"smoke": "seconds"}  # noqa: RUF012

    def cells(self, scale):
        pairs = [Cell(f"pair{i}", {"task": "nodes", "i": -i}, group="pair") for i in (1, 2)]
        return pairs + [Cell(f"cell{i}", {"task": "nodes", "i": i}) for i in range(self.jobs)]

    def run(self, jobs, context):
        node = ray.get_runtime_context().get_node_id()
        for job in jobs:
            (self.folder / f"{job.cell.name}-{node}-{os.getpid()}-{time.monotonic_ns()}").touch()
            context.report(job, 1, 2, half=0.5)
            wait_for(lambda: len({path.name.split("-")[1] for path in self.folder.iterdir()}) > 1 or self.victim_is_dead())
            time.sleep(3.0 if node == self.victim else 0.2)
            yield Result(job, {"node": node}, artefacts={"note.txt": node.encode()})

    def victim_is_dead(self):
        """Or about to be: nobody needs to wait for it."""
        return (self.folder.parent / "dead").exists()

    def begun_on_victim(self):
        """Processes, by the cell they began last."""
        return {path.name.split("-")[0]: int(path.name.split("-")[2]) for path in self.folder.glob(f"*-{self.victim}-*")}


class Notes(Listener):
    """Remembers what it is told."""

    def __init__(self):
        super().__init__()
        self.ended, self.lost_jobs, self.told = Counter(), [], 0

    def finished(self, job, status):
        self.ended[job.cell.name] += 1

    def lost(self, job, reason):
        self.lost_jobs.append(job.cell.name)

    def reported(self, job, step, total, values):
        self.told += values == {"half": 0.5}


class Counted(Store):
    """A store that counts what is written."""

    def __init__(self, folder):
        super().__init__(folder)
        self.written = Counter()

    def write(self, study, result):
        self.written[result.job.cell.name] += 1
        return super().write(study, result)


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_dies_and_every_job_ends_exactly_once(cluster, tmp_path):
    victim = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    (tmp_path / "begun").mkdir()
    study, store, notes = Nodes(tmp_path / "begun", victim.node_id), Counted(tmp_path / "results"), Notes()

    def kill():
        """What a loss of power does: the node's daemon and its workers end at once."""
        wait_for(lambda: set(study.begun_on_victim()) - set(notes.ended))
        (tmp_path / "dead").touch()
        cluster.remove_node(victim, allow_graceful=False)
        for pid in set(study.begun_on_victim().values()):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = execute(study, "smoke", [0], store, "ray", address=cluster.address, progress=notes)
    killer.join()

    names = {cell.name for cell in study.cells("smoke")}
    assert not outcome.failures
    assert set(store.written) == names and set(store.written.values()) == {1}
    assert set(notes.ended) == names and set(notes.ended.values()) == {1}
    assert {record.cell for record in outcome.records} == names and outcome.new == len(names)
    assert notes.lost_jobs, "the node was killed while it worked, so something must have been lost"
    head = next(record for record in outcome.records if record.cell == notes.lost_jobs[0])
    assert head.metrics["node"] != victim.node_id
    assert head.artefact("note.txt").read_text() == head.metrics["node"]
    assert notes.told > 0, "progress must come back from the nodes"
    assert list((tmp_path / "results" / ".leases").iterdir()) == []


def double(values):
    return [2 * v for v in values]


def test_chunks_on_the_cluster_keep_their_order(cluster):
    assert map_chunks(double, [[1], [2, 3], [4]], "ray", address=cluster.address) == [[2], [4, 6], [8]]


class Impatient(Listener):
    """Stops at the first note."""

    def note(self, text):
        raise KeyboardInterrupt(text)


@dataclass
class Greedy(Nodes):
    """A study that asks for a GPU, which this cluster has not."""

    def cells(self, scale):
        return [Cell("greedy", {"task": "greedy"}, gpus=1)]


def test_a_cluster_that_lacks_a_gpu_says_so_and_ctrl_c_gives_the_lease_back(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "_PATIENCE", 0.0)
    options = {"address": cluster.address, "progress": Impatient()}
    with pytest.raises(KeyboardInterrupt, match="waiting for a node with 1 CPUs and 1 GPUs: none of the . here"):
        execute(Greedy(tmp_path, ""), "smoke", [0], tmp_path / "results", "ray", **options)
    assert list((tmp_path / "results" / ".leases").iterdir()) == []
    assert not ray.is_initialized()
    assert map_chunks(double, [[1]], "ray", address=cluster.address) == [[2]], "the cluster is free again"


def test_addresses_where_nothing_answers():
    with pytest.raises(OSError, match="could not reach a Ray cluster at '127.0.0.1:1': Connection refused"):
        map_chunks(double, [[1]], "ray", address="127.0.0.1:1")
    with pytest.raises(ValueError, match="submit it as a job"):
        map_chunks(double, [[1]], "ray", address="ray://127.0.0.1:10001")
