"""From a results folder to tables, figures, plain words, and one page that needs nothing else. It trains nothing."""

from squareloss.lab.report.write import FORMATS, StudyReport, gather, of, write

__all__ = ["FORMATS", "StudyReport", "gather", "of", "write"]
