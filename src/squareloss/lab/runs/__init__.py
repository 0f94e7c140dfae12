"""From studies to results: `Study`, `Cell` and `Job`, the results folder `Store`, and `execute`, on one machine or many."""

from squareloss.lab.runs.chunks import map_chunks
from squareloss.lab.runs.execute import ENGINES, Outcome, execute
from squareloss.lab.runs.live import watch
from squareloss.lab.runs.schedule import Failure
from squareloss.lab.runs.store import Record, Store, StoreError
from squareloss.lab.runs.study import SCALES, Cell, Context, Job, Result, Study, expand

__all__ = [
    "Cell", "Context", "ENGINES", "Failure", "Job", "Outcome", "Record", "Result", "SCALES", "Store", "StoreError", "Study",
    "execute", "expand", "map_chunks", "watch",
]  # fmt: skip
