"""CSV and Parquet."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet

from squareloss import Standardize
from squareloss.lab.data import load
from squareloss.lab.data.dataset import SplitPlan
from squareloss.lab.data.tables import _categorical

N = 40


def _columns(**extra):
    rng = np.random.default_rng(0)
    label = np.where(np.arange(N) % 2, "yes", "no")
    return {"age": rng.normal(40, 10, N), "colour": rng.choice(["red", "green", "blue"], N), "label": label, **extra}


def _write(path, columns):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    parquet.write_table(table, path) if path.suffix == ".parquet" else csv.write_csv(table, path)
    return path


def _rows(data, part):
    """Which rows of the file a split holds."""
    y = torch.arange(N) % 2
    return dict(zip(("train", "validation", "test"), SplitPlan().rows(y), strict=True))[part].numpy()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table_in_both_formats(tmp_path, suffix):
    columns = _columns(member=np.arange(N) % 3 == 0, count=2 * np.arange(N))
    data = load(_write(tmp_path / f"people{suffix}", columns), "label")
    assert (data.name, data.kind, data.classes) == ("people", "table", ("no", "yes"))
    assert data.features == ("age", "colour=blue", "colour=green", "colour=red", "member=false", "member=true", "count")
    for part in ("train", "validation", "test"):
        rows = _rows(data, part)
        split = getattr(data, part)
        assert split.x.dtype == torch.float32
        np.testing.assert_allclose(split.x[:, 0], columns["age"][rows], rtol=1e-6)
        for k, colour in enumerate(["blue", "green", "red"]):
            assert (split.x[:, 1 + k].numpy() == (columns["colour"][rows] == colour)).all()
        assert (split.x[:, 5].numpy() == columns["member"][rows]).all()
        assert (split.x[:, 6].numpy() == 2 * rows).all()
        assert [data.classes[k] for k in split.y] == columns["label"][rows].tolist()
    torch.testing.assert_close(data.mean, data.train.x.mean(0))
    assert data.notes == ()


def test_missing_numbers_get_the_training_mean(tmp_path):
    columns = _columns()
    train, test = _rows(None, "train"), _rows(None, "test")
    columns["age"][[train[0], train[5], test[2]]] = np.nan
    columns["age"][test[3]] = 1e6  # must not enter the mean
    data = load(_write(tmp_path / "d.parquet", columns), "label")
    mean = np.nanmean(columns["age"][train])
    assert data.train.x[0, 0].item() == pytest.approx(mean)
    assert data.train.x[5, 0].item() == pytest.approx(mean)
    assert data.test.x[2, 0].item() == pytest.approx(mean)
    assert data.mean[0].item() == pytest.approx(mean)
    assert len(data.notes) == 1
    assert "'age': 3 missing of 40" in data.notes[0]


def test_categories_unseen_in_training_are_zeros_and_the_width_is_that_of_every_split(tmp_path):
    columns = _columns()
    test = _rows(None, "test")
    columns["colour"] = columns["colour"].astype(object)
    columns["colour"][test[0]] = "violet"
    columns["colour"][test[1]] = None
    columns["colour"][_rows(None, "train")[1]] = None
    path = _write(tmp_path / "d.parquet", columns)
    data = load(path, "label")
    assert data.features[1:] == ("colour=blue", "colour=green", "colour=red", "colour=violet")
    assert data.test.x[:2, 1:].abs().sum() == 0
    assert data.train.x[1, 1:].abs().sum() == 0
    assert (data.test.x[2:, 1:].sum(1) == 1).all()
    assert [note.split(": ")[1][:9] for note in data.notes] == ["2 missing", "1 outside"]
    whole = load(path, "label", validation=0.0, test=0.0)
    assert whole.features == data.features and whole.train.x[test[0], 4] == 1


def test_empty_fields_of_a_csv_are_missing(tmp_path):
    path = tmp_path / "d.csv"
    rows = [f"{3 * i},{'' if i == 3 else 'a' if i % 3 else 'b'},{'' if i == 4 else i / 2},{i % 2}" for i in range(N)]
    path.write_text("\n".join(["id,kind,size,y", *rows]))
    data = load(path, "y")
    assert data.features == ("id", "kind=a", "kind=b", "size")
    assert len(data.notes) == 2
    everything = torch.cat([data.train.x, data.validation.x, data.test.x])
    by_id = everything[everything[:, 0].argsort()]
    assert by_id[3, 1:3].tolist() == [0, 0]
    assert by_id[5, 3] == 2.5
    assert torch.isfinite(everything).all()


def test_line_breaks_in_quotes_wherever_they_fall(tmp_path):
    """A file is read in blocks of a megabyte, and one of them may end at such a break."""
    path, rows = tmp_path / "d.csv", 50_000
    path.write_text("size,remark,y\n" + "".join(f'{i},"one line\nand a second",{i % 2}\n' for i in range(rows)))
    data = load(path, "y", validation=0.0, test=0.0)
    assert data.train.n == rows and data.features == ("size", "remark=one line\nand a second")


def _csv(path, name, values):
    """Two plain columns and one of these texts."""
    rows = [f'{3 * i},"{value}",{i % 2}' for i, value in enumerate(values)]
    path.write_text("\n".join([f"id,{name},y", *rows]))
    return path


@pytest.mark.parametrize("mark", ["?", "-", " ? ", "na", "NA", "None", "<NA>"])
def test_marks_of_missing_values_among_numbers(tmp_path, mark):
    values = [str(i / 4) for i in range(N)]
    values[3] = values[30] = mark
    data = load(_csv(tmp_path / "d.csv", "size", values), "y", validation=0.0, test=0.0)
    assert data.features == ("id", "size")
    expected = np.arange(N) / 4
    expected[[3, 30]] = np.delete(expected, [3, 30]).mean()
    np.testing.assert_allclose(data.train.x[:, 1], expected, rtol=1e-6)
    said = " ".join(data.notes)
    assert "'size': 2 missing of 40" in said
    assert mark == "NA" or f"{mark.strip()!r} among the numbers, read as missing" in said


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("stray", ["unknown", "1,234", "12%", "3 m", "2024-02-01"])
def test_numbers_with_a_stray_word_are_refused_by_name(tmp_path, suffix, stray):
    values = [f"{i / 4}" for i in range(N)]
    values[6], values[9:21] = stray, ["?"] * 12  # marks do not count: 27 of 28 are numbers
    path = tmp_path / f"d{suffix}"
    if suffix == ".csv":
        _csv(path, "size", values)
    else:
        _write(path, {"size": values, "y": np.arange(N) % 2})
    with pytest.raises(
        ValueError, match=rf"'size': expected numbers alone.* got '{stray}' \(data row 7\); .*leave missing cells empty"
    ):
        load(path, "y")


def test_many_numbers_among_words_are_said_to_be_categories(tmp_path):
    data = load(_csv(tmp_path / "d.csv", "size", [f"{i / 4}" if i % 5 else "unknown" for i in range(N)]), "y")
    assert data.notes[0] == "column 'size': 'unknown' (data row 1) among numbers, read as categories"


def test_all_numbers_in_a_dress_are_refused(tmp_path):
    path = _csv(tmp_path / "d.csv", "price", [f"${i + 1},000.50" for i in range(N)])
    with pytest.raises(ValueError, match=r"'price': .* got '\$1,000.50' \(data row 1\), .* and 37 more; write plain numbers"):
        load(path, "y")
    path = _csv(tmp_path / "d.csv", "weight", [f"{i},{i % 7}" if i % 9 else f"1.{i:03},5" for i in range(N)])
    with pytest.raises(ValueError, match=r"'weight': .* got '1.000,5' \(data row 1\), .* not 1,234.5 or 1234,5"):
        load(path, "y")


def test_a_class_that_looks_like_a_missing_value_is_named(tmp_path):
    path = _write(tmp_path / "a.parquet", {"x": np.arange(N) / 2, "y": [("yes", "no", "?")[i % 3] for i in range(N)]})
    data = load(path, "y")
    assert data.classes == ("?", "no", "yes")
    assert data.notes == ("class '?' looks like a missing value; if it is one, drop its rows",)


def test_names_that_differ_in_spaces_or_capitals_alone_are_told(tmp_path):
    columns = {"x": ["red", " red", "blue", "Blue"] * (N // 4), "y": ["yes", "no", "yes ", "maybe"] * (N // 4)}
    data = load(_write(tmp_path / "a.parquet", columns), "y")
    assert data.num_classes == 4 and len(data.features) == 4
    assert data.notes == (
        "column 'x': categories ' red', 'red' differ in spaces or capitals alone; if they are one, write it in one way",
        "column 'x': categories 'Blue', 'blue' differ in spaces or capitals alone; if they are one, write it in one way",
        "classes 'yes', 'yes ' differ in spaces or capitals alone; if they are one, write it in one way",
    )


def test_categories_that_look_like_numbers_or_marks_stay_categories(tmp_path):
    several = ["0", "1", "2", "3+"]
    path = _csv(tmp_path / "a.csv", "children", [several[i % 3] if i % 20 else "3+" for i in range(N)])
    data = load(path, "y", validation=0.0, test=0.0)
    assert data.features == ("id", *(f"children={value}" for value in several))
    assert data.notes == ("column 'children': '3+' (data row 1) among numbers, read as categories",)
    counts = [["none", "1", "2"][i % 3] for i in range(N)]  # children, of whom none is zero and not missing
    data = load(_csv(tmp_path / "b.csv", "children", counts), "y")
    assert len(data.features) == 4
    assert data.notes == ("column 'children': 'none' (data row 1) among numbers, read as categories",)
    for name, values in {"strand": ["+", "-"], "kind": ["private", "?"], "code": ["4401", "A12"], "won": ["1", "-"]}.items():
        data = load(_csv(tmp_path / "b.csv", name, [values[i % 3 == 0] for i in range(N)]), "y")
        assert data.features[1:] == tuple(f"{name}={value}" for value in sorted(values)) and data.notes == ()
    zips = _write(tmp_path / "c.parquet", {"zip": [f"{i:05d}" for i in range(N)], "y": np.arange(N) % 2})
    assert len(load(zips, "y").features) == N  # text by its type
    marked = [f"{i:05d}" if i % 7 else "NA" for i in range(N)]
    zips = _write(tmp_path / "d.parquet", {"zip": marked, "y": np.arange(N) % 2})
    assert len(load(zips, "y").features) == len(set(marked))  # 00501 is no number, whatever else there is


def test_dictionary_decimal_and_large_types(tmp_path):
    columns = _columns()
    table = pa.table(
        {
            "colour": pa.array(columns["colour"]).dictionary_encode(),
            "price": pa.array([decimal.Decimal(i) / 4 for i in range(N)]),
            "big": pa.array([2**57 * i + 1 for i in range(N)]),
            "text": pa.array(columns["colour"]).cast(pa.large_string()),
            "label": pa.array(columns["label"]).dictionary_encode(),
        }
    )
    data = load(_write(tmp_path / "d.parquet", table), "label")
    assert data.classes == ("no", "yes")
    assert data.features[:6] == ("colour=blue", "colour=green", "colour=red", "price", "big", "text=blue")
    np.testing.assert_array_equal(data.test.x[:, 3].numpy(), _rows(None, "test") / 4)
    assert torch.equal(data.train.x[:, :3], data.train.x[:, 5:])


def test_row_numbers_of_pandas_are_left_out(tmp_path):
    data = load(_write(tmp_path / "d.parquet", _columns(__index_level_0__=np.arange(N))), "label")
    assert "__index_level_0__" not in data.features
    assert "row numbers" in data.notes[0]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
@pytest.mark.parametrize("rows", [range(N), range(N, 0, -1), [f"car {i}" for i in range(N)]])
def test_row_numbers_of_a_csv_are_left_out(tmp_path, name, rows):
    path = _write(tmp_path / "d.csv", {name: list(rows), **_columns()})
    data = load(path, "label")
    assert data.features == ("age", "colour=blue", "colour=green", "colour=red")
    assert data.notes == (f"column {name!r}: row numbers or names, as pandas and R write them, left out",)


@pytest.mark.parametrize(("names", "cells"), [(",", ","), (",,", ",,"), (",", ", "), (",Unnamed: 3", ",")])
def test_empty_columns_without_a_name_are_left_out(tmp_path, names, cells):
    path = tmp_path / "d.csv"
    path.write_text(f"a,b,y{names}\n" + "".join(f"{3 * i},{i % 7},{i % 2}{cells}\n" for i in range(N)))
    data = load(path, "y")
    assert data.features == ("a", "b")
    left_out = "neither a name nor a value, as spreadsheets write them, left out"
    assert data.notes == tuple(f"column {4 + i}: {left_out}" for i in range(names.count(",")))


def test_columns_without_a_name_that_may_mean_something_are_not_left_out(tmp_path):
    path = tmp_path / "d.csv"
    rows = "".join(f"{i},{i % 2},{'x' * (i % 3 == 0)}\n" for i in range(N))
    path.write_text(f"a,y,\n{rows}")
    assert load(path, "y").features == ("a", "=x")
    path.write_text(f"a,y,,\n{rows.replace(chr(10), ',x' + chr(10))}")
    with pytest.raises(ValueError, match="'' more than once"):
        load(path, "y")
    path.write_text("a,y,\n1,0\n2,1\n")  # is it a name too many, or a value too few?
    with pytest.raises(ValueError, match="Expected 3 columns, got 2"):
        load(path, "y")


@pytest.mark.parametrize("values", [np.arange(N) // 2, np.arange(N) / 7, np.arange(N) % 2 == 0])
def test_a_column_without_a_name_that_numbers_no_rows_is_kept(tmp_path, values):
    data = load(_write(tmp_path / "d.csv", {"": values, **_columns()}), "label")
    assert data.features[0].partition("=")[0] == "" and data.notes == ()


def test_row_numbers_under_a_name_are_told(tmp_path):
    ids = np.random.default_rng(0).permutation(N) + 1
    others = {"even": 2 * ids, "twice": np.arange(N) // 2, "gap": np.where(ids == N, N + 5, ids), "length": ids + 0.5}
    (note,) = load(_write(tmp_path / "people.csv", _columns(id=ids, **others)), "label").notes
    assert note.startswith("column 'id': every whole number from 1 to 40, once each")


@pytest.mark.parametrize("values", [np.arange(N) % 2 == 1, np.arange(N) % 2 + 5, (np.arange(N) % 2).astype(float)])
def test_targets_of_other_types(tmp_path, values):
    data = load(_write(tmp_path / "d.parquet", _columns(target=values)), "target")
    assert torch.equal(data.train.y, torch.from_numpy(_rows(None, "train") % 2))


def test_target_column_that_is_not_there(tmp_path):
    path = _write(tmp_path / "d.csv", _columns())
    with pytest.raises(ValueError, match=r"d\.csv.*'Lable'.*age, colour, label; did you mean 'label'\?"):
        load(path, "Lable")
    with pytest.raises(ValueError, match="age, colour, label$"):
        load(path, "zzz")
    with pytest.raises(ValueError, match="choose from: age, colour, label"):
        load(path)
    for rows in ("1;2;0", "1,5;2,5;0"):  # in the second, commas make three columns of a row
        path.write_text(f"a;b;y\n{rows}\n")
        with pytest.raises(ValueError, match=r"[^?]; is the separator a comma\?$"):
            load(path, "y")
    path.write_text("a;b;y\n1;2;0\n")
    with pytest.raises(ValueError, match=r"choose from: a;b;y; is the separator a comma\?$"):
        load(path)
    for mark in " \t;|":
        path.write_text(f"a{mark}b{mark}label\n1{mark}2{mark}0\n")
        with pytest.raises(ValueError, match=r"label; is the separator a comma\?$") as error:
            load(path, "label")
        assert "did you mean" not in str(error.value), "the whole header"
    path.write_text("1.5,2,no\n2.5,1,yes\n")
    with pytest.raises(ValueError, match=r"'y', got the columns 1\.5, 2, no; is there a header\?"):
        load(path, "y")
    path.write_text(",".join([*(f"x{i}" for i in range(99)), "label"]) + "\n" + "1," * 99 + "no\n")
    with pytest.raises(ValueError, match="choose from: x0, .* x19, 70 more, x90, .* x98, label$"):
        load(path)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_csv_in_another_encoding(tmp_path, encoding):
    path = tmp_path / "d.csv"
    path.write_bytes("größe,y\n1,0\n2,1\n".encode(encoding))
    with pytest.raises(ValueError, match=r"d\.csv: expected text in UTF-8, got .*; save the file as UTF-8"):
        load(path, "y")


@pytest.mark.parametrize(
    ("extra", "target", "message"),
    [
        ({"gone": pa.nulls(N)}, "label", "'gone': expected values, got none"),
        ({"gone": pa.nulls(N, pa.float64())}, "label", "'gone': expected values, got none"),
        ({"gone": pa.nulls(N, pa.string())}, "label", "'gone': expected values, got none"),
        ({"gone": np.full(N, np.nan)}, "label", "'gone': expected a value in the training split"),
        ({"wild": np.where(np.arange(N) == 3, np.inf, 0.0)}, "label", "'wild': expected numbers that float32 can hold"),
        ({"wild": np.where(np.arange(N) == 3, -1e300, 0.0)}, "label", "'wild': expected numbers that float32 can hold"),
        ({"when": 1_700_000_000 + np.arange(N)}, "label", "'when': .* float32 can tell apart, got 1700000000 to 1700000039"),
        (
            {"id": pa.array([None, *(10**18 + i for i in range(1, N))])},
            "label",
            "'id': .* float32 can tell apart, got 1000000000000000001 to 1000000000000000039",
        ),
        ({"day": pa.array([datetime.date(2020, 1, 1)] * N)}, "label", "'day': .* got date32"),
        ({"day": pa.array([datetime.date(2020, 1, 1)] * N)}, "day", "'day': .* got date32"),
        ({"raw": pa.array([b"\xff"] * N)}, "label", "'raw': .* UTF-8"),
        ({"y": pa.array([b"\xff", b"a"] * (N // 2))}, "y", "'y': .* UTF-8"),
        ({"y": np.where(np.arange(N) == 3, np.nan, 1.0)}, "y", "'y': .* 1 missing"),
        ({"y": pa.array([None, *"ab" * 19, "a"])}, "y", "'y': .* 1 missing"),
        ({"y": np.ones(N)}, "y", "'y': expected two classes or more, got only '1'"),
        ({"y": np.linspace(0, 1, N)}, "y", "'y': .* regression"),
        ({"y": np.where(np.arange(N) % 2, 1e20, 1e21)}, "y", "'y': .* regression"),
        ({"y": np.where(np.arange(N) % 2, 1.0, np.inf)}, "y", "'y': .* such as inf"),
        ({"y": np.arange(N)}, "y", "expected every class in the training split of .* 40 classes .* are they amounts"),
    ],
)
def test_columns_that_are_refused_by_name(tmp_path, extra, target, message):
    with pytest.raises(ValueError, match=message) as error:
        load(_write(tmp_path / "d.parquet", _columns(**extra)), target)
    assert "d" in str(error.value)


def test_amounts_as_classes_are_told_of(tmp_path):
    x, ages = np.random.default_rng(0).normal(size=300), np.arange(300) % 60
    told = "60 classes in 300 rows, all numbers; if these are amounts, this is a regression"
    assert load(_write(tmp_path / "a.parquet", {"x": x, "y": ages}), "y").notes == (told,)
    for classes in (ages % 15, np.char.add("no ", ages.astype(str))):  # few, or names
        assert load(_write(tmp_path / "b.parquet", {"x": x, "y": classes}), "y").notes == ()


def test_column_without_a_training_value(tmp_path):
    some = np.full(N, np.nan)
    some[_rows(None, "test")[0]] = 1.0
    with pytest.raises(ValueError, match="'some': expected a value in the training split"):
        load(_write(tmp_path / "a.parquet", _columns(some=some)), "label")
    text = np.full(N, None, dtype=object)
    text[_rows(None, "test")[0]] = "x"
    with pytest.raises(ValueError, match="'some': expected a value in the training split"):
        load(_write(tmp_path / "b.parquet", _columns(some=text)), "label")


def test_categories_are_bits_until_rows_are_drawn():
    encoded = _categorical(pa.chunked_array([["a", "b"] * 3]), "x", np.arange(6), "x")
    assert encoded.values.dtype == bool  # a thousand columns of floats would fill the memory


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%SZ"])
def test_dates_are_refused_with_advice(tmp_path, form, suffix):
    days = [(datetime.datetime(2024, 2, 1) + datetime.timedelta(i)).strftime(form) for i in range(N)]
    for cells in (days, ["?", "soon", *days[2:]]):
        with pytest.raises(ValueError, match=r"'day': expected .*, got (dates such as '|date|timestamp).* \(year, month,"):
            load(_write(tmp_path / f"d{suffix}", _columns(day=cells)), "label")


@pytest.mark.parametrize("text", ["1.2.3", "10-11-12", "2024-02", "555-12-2024"])
def test_what_is_no_date_stays_a_category(tmp_path, text):
    data = load(_write(tmp_path / "d.parquet", _columns(code=[text, "x"] * (N // 2))), "label")
    assert f"code={text}" in data.features


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_few_dates_may_be_categories(tmp_path, suffix):
    data = load(_write(tmp_path / f"d{suffix}", _columns(version=["1.2.2024", "1.3.2024"] * (N // 2))), "label")
    assert {"version=1.2.2024", "version=1.3.2024"} <= set(data.features)
    assert "column 'version': dates such as '1.2.2024', read as categories" in data.notes


def test_categories_most_of_which_come_once_are_told(tmp_path):
    names = [f"customer {i}" for i in range(N)]
    note = f"column 'name': {N} categories in {N} rows; if it is a name or free text, drop it"
    assert load(_write(tmp_path / "a.parquet", _columns(name=names)), "label").notes[0] == note
    halves = [f"customer {i // 2}" for i in range(N)]
    assert not any("free text" in note for note in load(_write(tmp_path / "b.csv", _columns(name=halves)), "label").notes)


def test_identifiers_are_not_encoded(tmp_path):
    n = 2000
    columns = {"name": [f"id{i}" for i in range(n)], "label": np.arange(n) % 2}
    with pytest.raises(ValueError, match="'name': expected at most 1000 categories, got 2000"):
        load(_write(tmp_path / "d.parquet", columns), "label")


def test_constant_columns_are_fine(tmp_path):
    data = load(_write(tmp_path / "d.parquet", _columns(one=np.full(N, 0.1), word=["same"] * N)), "label")
    assert torch.isfinite(Standardize(data.mean, data.std)(data.test.x)).all()
    assert data.std[-2:].tolist() == [1, 1]


def test_files_that_are_no_tables(tmp_path):
    contents = {"empty.csv": b"", "ragged.csv": b"a,b\n1,2\n1,2,3\n", "not.parquet": b"a,b\n1,2\n", "nil.parquet": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            load(tmp_path / name, "b")
    with pytest.raises(ValueError, match="expected rows below the header"):
        (tmp_path / "header.csv").write_text("a,b\n")
        load(tmp_path / "header.csv", "b")
    with pytest.raises(ValueError, match="'a' more than once"):
        (tmp_path / "twice.csv").write_text("a,a,y\n1,2,0\n")
        load(tmp_path / "twice.csv", "y")
    with pytest.raises(ValueError, match="none beside it"):
        (tmp_path / "alone.csv").write_text("y\n1\n0\n1\n0\n")
        load(tmp_path / "alone.csv", "y")
    with pytest.raises(FileNotFoundError, match=r"absent\.csv"):
        load(tmp_path / "absent.csv", "y")


def test_a_damaged_parquet_is_named(tmp_path):
    path = _write(tmp_path / "d.parquet", {"a": np.arange(N) * 0.5, "y": np.arange(N) % 2})
    whole = path.read_bytes()
    for place in range(4, len(whole) - 8, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            load(path, "y")
        except ValueError as error:
            assert "d.parquet" in str(error)  # noqa: PT017, many of them can be read
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.parquet", "y")
