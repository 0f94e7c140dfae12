"""Data sets: `load` reads them by name or path, `download.get` fetches the official ones, `synthetic` draws the paper's."""

from squareloss.lab.data.dataset import Dataset, Split
from squareloss.lab.data.sources import NAMES, default_root, load

__all__ = ["Dataset", "NAMES", "Split", "default_root", "load"]
