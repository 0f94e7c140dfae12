"""CSV and Parquet with a target column: categories one-hot, missing numbers filled from the training split alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from squareloss._checks import nearest
from squareloss.lab.data.dataset import Dataset, Split, SplitPlan, check_told_apart, encode_labels, moments

Values = npt.NDArray[np.float32] | npt.NDArray[np.bool_]

MAX_CATEGORIES = 1000  # beyond this a text column is an identifier, and one-hot columns would fill the memory
_PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
# a number to a reader: 1,234 or 1,5 or $5.00 or 12%
_DRESSED = re.compile(r"[-+]?[$€£]?(\d+|\d{1,3}(,\d{3})+|\d[\d.]*,\d+)(\.\d*)?%?")
# among numbers; a category may well be called "-"
_MISSING = ("", "?", "-", "--", ".", "na", "n/a", "nan", "null", "<na>")
_MOSTLY, _FEW = 0.9, 20  # from which share on a text column is one of numbers, and up to how many may be categories
# 2024-02-01 or 1.2.2024 or 2/1/2024, perhaps with a time; a year of two digits might be part of a code
_DATE = re.compile(r"(\d{4}([-./])\d{1,2}\2\d{1,2}|\d{1,2}([-./])\d{1,2}\3\d{4})([ T]\d{1,2}:\d{2}.*)?")
_NO_DATE = "write what matters of it as numbers (year, month, day of the week, days since the first), or drop it"
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls its row numbers in Parquet
_NAMELESS = re.compile(r"(Unnamed: [\d.]+)?")  # and in CSV, where R has no name for them either


class Encoded(NamedTuple):
    """A column as numbers (n, k), of categories bits, their k names, and what its owner should know."""

    values: Values
    names: list[str]
    notes: list[str]


def read_table(path: Path, target: str | None, plan: SplitPlan) -> Dataset:
    """Rows of a CSV or Parquet file, with `target` as the class.

    Numeric columns are kept, missing values replaced by the training mean. Text, boolean and dictionary columns become one
    0/1 column per category of the whole table, so that the width is that of every split; a category missing, or unseen in
    training, is all zeros. A text column of numbers with marks such as "?" is numeric, the marks are missing values; one of
    numbers with some words is refused by name, as are dates, lists and columns without a single training value. What was
    filled or unseen is told in `notes`.
    """
    table, empty = _without_empty(_read(path))
    _check_columns(table, path, target)
    y, classes = encode_labels(_target(table.column(target), f"{path}, column {target!r}"), f"{path}, column {target!r}")
    rows = plan.rows(y)
    index = [name for name in table.column_names if name != target and _is_index(table.column(name), name)]
    features = [name for name in table.column_names if name != target and name not in index]
    if not features:
        raise ValueError(f"{path}: expected columns to predict {target!r} from, got none beside it")
    encoded = [_encode(table.column(name), name, rows[0].numpy(), path) for name in features]
    train, validation, test = (Split(_joined(encoded, r.numpy()), y[r]) for r in rows)
    names = [name for column in encoded for name in column.names]
    notes = [note for column in encoded for note in column.notes]
    notes += [f"column {name!r}: row numbers or names, as pandas and R write them, left out" for name in index]
    notes += [f"column {place}: neither a name nor a value, as spreadsheets write them, left out" for place in empty]
    if len(classes) > _FEW and len(y) < _FEW * len(classes) and all(_PLAIN.fullmatch(name) for name in classes):
        notes.append(f"{len(classes)} classes in {len(y)} rows, all numbers; if these are amounts, this is a regression")
    notes += [f"class {name!r} looks like a missing value; if it is one, drop its rows" for name in classes if _mark(name)]
    notes += [f"classes {pair}; if they are one, write it in one way" for pair in _alike(classes)]
    return Dataset(path.stem, "table", train, validation, test, classes, *moments(train.x), tuple(names), tuple(notes))


def _joined(columns: list[Encoded], rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """These rows of all columns, float32 (n, D); of the whole table, with many categories, that would be large."""
    return torch.from_numpy(np.concatenate([column.values[rows] for column in columns], axis=1, dtype=np.float32))


def _read(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".parquet":
            return parquet.ParquetFile(path).read()
        with path.open("rb") as file:
            names = file.readline().decode()  # of the columns, after the mark at the start of UTF-16
        parsed = csv.ParseOptions(newlines_in_values=True)  # else one at the end of a block, of 1 MB, ends the row
        return csv.read_csv(path, parse_options=parsed, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, got another encoding; save the file as UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not about what is in the file
            raise
        hint = _separator(names) if path.suffix.lower() == ".csv" else ""
        raise ValueError(f"{path}: could not read it as {path.suffix.lower()}: {error}{hint}") from error


def _without_empty(table: Any) -> tuple[Any, list[int]]:
    """The table without its columns that have neither a name nor a single value, and the places of those, from 1."""
    empty = [i for i, name in enumerate(table.column_names) if _NAMELESS.fullmatch(name) and _is_empty(table.column(i))]
    return table.select([i for i in range(table.num_columns) if i not in empty]), [i + 1 for i in empty]


def _is_empty(column: Any) -> bool:
    import pyarrow.compute as pc

    if _is_text(column.type):  # spaces alone are no value
        return not pc.any(pc.not_equal(pc.utf8_trim_whitespace(column), "")).as_py()
    return bool(column.null_count == len(column))


def _check_columns(table: Any, path: Path, target: str | None) -> None:
    names: list[str] = table.column_names
    listed = ", ".join(names if len(names) <= 30 else [*names[:20], f"{len(names) - 30} more", *names[-10:]])
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: expected different column names, got {twice[0]!r} more than once; rename one")
    if not table.num_rows:
        raise ValueError(f"{path}: expected rows below the header, got none")
    separator = _separator(names[0]) if len(names) == 1 else ""
    if target is None:
        raise ValueError(f"{path}: expected the name of the target column, got none; choose from: {listed}{separator}")
    if target not in names:
        hint = separator or nearest(target, names)  # the nearest is then the whole header
        hint += "; is there a header?" if any(_PLAIN.fullmatch(name.strip()) for name in names) else ""
        raise ValueError(f"{path}: expected a target column {target!r}, got the columns {listed}{hint}")


def _separator(header: str) -> str:
    """A hint, if the names of the columns are separated by something else than commas."""
    return "; is the separator a comma?" if "," not in header and re.search(r"[;\t| ]", header.strip()) else ""


def _is_index(column: Any, name: str) -> bool:
    """Row numbers or names that came along when the file was written: no name of its own, and another value in each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _INDEX.fullmatch(name):
        return True
    numbers_or_text = pa.types.is_integer(column.type) or _is_text(column.type)
    return bool(_NAMELESS.fullmatch(name)) and numbers_or_text and len(pc.unique(column)) == len(column)


def _target(column: Any, what: str) -> npt.NDArray[Any]:
    import pyarrow as pa

    column = _decoded(column)
    if column.null_count:
        raise ValueError(
            f"{what}: expected a class for every row, got {column.null_count} missing (empty, or the text NA); "
            "drop those rows, or give that class another name"
        )
    if _is_text(column.type):
        return np.asarray(column.to_pylist(), dtype=object)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        hint = "; save the file as UTF-8" if pa.types.is_binary(column.type) else ""
        raise ValueError(f"{what}: expected classes as text, integers or booleans, got {column.type}{hint}")
    values: npt.NDArray[Any] = column.to_numpy()
    return values


def _encode(column: Any, name: str, train: npt.NDArray[np.int64], path: Path) -> Encoded:
    import pyarrow as pa

    what = f"{path}, column {name!r}"
    kind = column.type
    if column.null_count == len(column):
        raise ValueError(f"{what}: expected values, got none at all; drop the column")
    if _is_text(kind):
        return _text(column.cast(pa.string()), name, train, what)
    if pa.types.is_dictionary(kind) or pa.types.is_boolean(kind):
        return _categorical(_decoded(column).cast(pa.string()), name, train, what)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        if pa.types.is_integer(kind):
            check_told_apart(column.drop_null().to_numpy(), what)  # before float64 rounds them
        encoded = _numeric(column.cast(pa.float64(), safe=False).to_numpy(), name, train, what)
        return encoded._replace(notes=[*encoded.notes, *_counted(column, name)])
    hint = "save the file as UTF-8" if pa.types.is_binary(kind) else "convert it to numbers or text, or drop it"
    hint = _NO_DATE if pa.types.is_temporal(kind) else hint
    raise ValueError(f"{what}: expected numbers, text or booleans, got {kind}; {hint}")


def _counted(column: Any, name: str) -> list[str]:
    """What to say of a column that may well number the rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_integer(column.type) or column.null_count:
        return []
    low, high = pc.min_max(column).as_py().values()
    if not len(pc.unique(column)) == len(column) == high - low + 1:
        return []
    return [
        f"column {name!r}: every whole number from {low} to {high}, once each; if these number the rows, drop it: "
        "in a file sorted by class they give the class away"
    ]


def _numeric(values: npt.NDArray[np.float64], name: str, train: npt.NDArray[np.int64], what: str) -> Encoded:
    if np.abs(values, where=~np.isnan(values), out=np.zeros_like(values)).max() > np.finfo(np.float32).max:
        raise ValueError(f"{what}: expected numbers that float32 can hold, got infinity or beyond; clip or drop them")
    missing = np.isnan(values)
    if missing[train].all():
        raise ValueError(f"{what}: expected a value in the training split, got none at all; drop the column")
    check_told_apart(values[~missing], what)
    if not missing.any():
        return Encoded(values.astype(np.float32)[:, None], [name], [])
    mean = values[train][~missing[train]].mean()
    note = f"column {name!r}: {int(missing.sum())} missing of {len(values)}, replaced by the mean of the training split"
    return Encoded(np.where(missing, mean, values).astype(np.float32)[:, None], [name], [note])


def _text(column: Any, name: str, train: npt.NDArray[np.int64], what: str) -> Encoded:
    """What a column of text is, by the `_kind` of its values: the first of these that fits.

    1. Many dates, in most rows: refused.
    2. Two numbers or more beside marks, nothing else, and no codes (00501 is a name): numbers.
    3. Many numbers, dressed or not, in most rows, and something but plain ones: refused.
    4. Dates beside numbers and marks at most: categories, with a note; they may be versions, or stand for groups.
    5. As 3, with few numbers instead of many; or with two or more, in more than half of the rows: categories, with a note.
    6. Anything else: categories.

    Many are more than `_FEW` different ones, most rows `_MOSTLY` of those whose value is no mark.
    """
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(column)
    counts: dict[str, int] = {pair["values"]: pair["counts"] for pair in pc.value_counts(trimmed.drop_null()).to_pylist()}
    kinds = {text: _kind(text) for text in counts}

    def of(*wanted: str) -> list[str]:
        return [text for text, kind in kinds.items() if kind in wanted]

    def share(texts: list[str]) -> float:
        return sum(counts[text] for text in texts) / max(1, sum(counts[text] for text in kinds if kinds[text] != "mark"))

    marks, plain, dates, strange = of("mark"), of("number"), of("date"), of("date", "dressed", "word")
    numbers = of("number", "dressed")
    many, most, half = len(numbers) > _FEW, share(numbers) >= _MOSTLY, share(numbers) > 0.5
    notes: list[str] = []
    if len(dates) > _FEW and share(dates) >= _MOSTLY:
        raise ValueError(f"{what}: expected numbers or categories, got dates such as {dates[0]!r}; {_NO_DATE}")
    if marks and len(plain) > 1 and not strange and not any(re.match(r"[-+]?0\d", text) for text in plain):
        values = {text: float(text) for text in plain}
        encoded = _numeric(np.array([values.get(text, np.nan) for text in trimmed.to_pylist()]), name, train, what)
        note = f"column {name!r}: {', '.join(map(repr, marks))} among the numbers, read as missing"
        return encoded._replace(notes=[note, *encoded.notes])
    if strange and most and many:
        raise ValueError(
            f"{what}: expected numbers alone, as in most of its rows, got {_with_rows(strange, trimmed)}; write plain numbers "
            "(1234.5, not 1,234.5 or 1234,5), leave missing cells empty, or, if these are categories, write all of them as "
            "words"
        )
    if dates and dates == strange:
        notes = [f"column {name!r}: dates such as {dates[0]!r}, read as categories"]
    elif strange and (most or (half and len(numbers) > 1)):
        notes = [f"column {name!r}: {_with_rows(strange, trimmed)} among numbers, read as categories"]
    encoded = _categorical(column, name, train, what)
    return encoded._replace(notes=[*notes, *encoded.notes])


def _kind(text: str) -> str:
    """What a value looks like: "mark" (of a missing one), "number", "date", "dressed" (a number to a reader) or "word"."""
    if _mark(text):
        return "mark"
    patterns = {"number": _PLAIN, "date": _DATE, "dressed": _DRESSED}
    return next((kind for kind, pattern in patterns.items() if pattern.fullmatch(text)), "word")


def _mark(text: str) -> bool:
    """Whether people write this for a value that they do not have."""
    return text.strip() == "None" or text.strip().lower() in _MISSING  # "none" may well be zero


def _alike(names: Iterable[str]) -> list[str]:
    """What to say of names that differ in spaces or capitals alone, of the first three such groups."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[" ".join(name.split()).casefold()].append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    return [f"{', '.join(map(repr, group))} differ in spaces or capitals alone" for group in alike[:3]]


def _with_rows(texts: list[str], column: Any) -> str:
    """The first three texts, each with the row where it comes first, the first row of data being 1."""
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return ", ".join(f"{text!r} (data row {column.index(text).as_py() + 1})" for text in texts[:3]) + more


def _categorical(column: Any, name: str, train: npt.NDArray[np.int64], what: str) -> Encoded:
    import pyarrow as pa
    import pyarrow.compute as pc

    categories = sorted(pc.unique(column).drop_null().to_pylist())
    if len(categories) > MAX_CATEGORIES:
        raise ValueError(
            f"{what}: expected at most {MAX_CATEGORIES} categories, got {len(categories)}: "
            "an identifier or free text; drop the column or encode it as numbers"
        )
    codes = pc.fill_null(pc.index_in(column, value_set=pa.array(categories, pa.string())), -1).to_numpy()
    numbers = np.arange(len(categories))
    seen = np.isin(numbers, codes[train])  # the weights of others would stay as they were drawn: their column is zero
    if not seen.any():
        raise ValueError(f"{what}: expected a value in the training split, got none at all; drop the column")
    values = (codes[:, None] == numbers) & seen
    missing = column.null_count
    unseen = len(codes) - missing - int(values.sum())
    notes = [f"column {name!r}: {missing} missing of {len(codes)}, encoded as zeros"] if missing else []
    if len(categories) > max(_FEW, (len(codes) - missing) / 2):
        notes.append(
            f"column {name!r}: {len(categories)} categories in {len(codes)} rows; if it is a name or free text, drop it"
        )
    notes += [f"column {name!r}: categories {pair}; if they are one, write it in one way" for pair in _alike(categories)]
    notes += [f"column {name!r}: {unseen} outside training with an unseen category, encoded as zeros"] if unseen else []
    return Encoded(values, [f"{name}={category}" for category in categories], notes)


def _decoded(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")
