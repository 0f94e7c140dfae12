"""From studies to results: `Study`, `Cell` and `Job`, the results folder `Store`, and `execute`, on one machine or many."""

from squareloss.lab.runs.store import Record, Store, StoreError
from squareloss.lab.runs.study import SCALES, Cell, Context, Job, Result, Study, expand

__all__ = ["Cell", "Context", "Job", "Record", "Result", "SCALES", "Store", "StoreError", "Study", "expand"]
