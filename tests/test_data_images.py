"""Folders of images: classes, splits, modes and sizes."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from squareloss.lab.data import load


def _image(path, size=(6, 5), colour=(10, 20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    (image.quantize() if mode == "P" else image.convert(mode)).save(path)


def _folder(root, classes=("ant", "bee"), per_class=6):
    for k, name in enumerate(classes):
        for i in range(per_class):
            _image(root / name / f"{i}.png", colour=(i, k, 7))


def test_folder_by_class(tmp_path):
    _folder(tmp_path / "insects")
    (tmp_path / "insects" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "insects" / ".hidden").mkdir()
    data = load(tmp_path / "insects", validation=0, test=0)
    assert (data.name, data.classes, data.shape) == ("insects", ("ant", "bee"), (3, 5, 6))
    assert torch.equal(data.train.x[:, 1, 0, 0].long(), data.train.y)  # channel 1 was painted with the class
    assert data.train.x[:, 0, 2, 3].tolist() == [*range(6), *range(6)]
    assert torch.equal(data.train.x[:, 2], torch.full((12, 5, 6), 7, dtype=torch.uint8))


def test_folder_with_ready_made_splits(tmp_path):
    for part, n in (("train", 5), ("val", 2), ("test", 3)):
        _folder(tmp_path / part, per_class=n)
    data = load(tmp_path, validation=0.5)
    assert (data.train.n, data.validation.n, data.test.n) == (10, 4, 6)
    for split in (data.train, data.validation, data.test):
        assert torch.equal(split.x[:, 1, 0, 0].long(), split.y)
    _folder(tmp_path / "extra")
    with pytest.raises(ValueError, match="'extra'"):
        load(tmp_path)


def test_folder_without_test_takes_it_from_train(tmp_path):
    _folder(tmp_path / "train", per_class=10)
    data = load(tmp_path)
    assert (data.train.n, data.validation.n, data.test.n) == (14, 2, 4)


def test_grey_and_palette_images_become_rgb(tmp_path):
    _image(tmp_path / "a" / "1.png", mode="L")
    _image(tmp_path / "b" / "1.png", mode="P")
    _image(tmp_path / "b" / "2.bmp")
    data = load(tmp_path, validation=0, test=0)
    assert data.shape == (3, 5, 6)
    assert data.train.x[1, :, 0, 0].tolist() == data.train.x[2, :, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    levels = np.array([[0, 128, 257, 25700, 65535]], np.uint16)
    for name in "ab":
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"1.{suffix}"
        if suffix == "pgm":  # which Pillow writes from 11 on
            path.write_bytes(b"P5 5 1 65535 " + levels.astype(">u2").tobytes())
        else:
            Image.fromarray(levels).save(path)
    data = load(tmp_path, validation=0, test=0)
    assert data.train.x[0].tolist() == [[[0, 0, 1, 100, 255]]] * 3


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_without_a_known_range_are_refused_by_name(tmp_path, mode):
    _folder(tmp_path)
    Image.new(mode, (6, 5), 70_000).save(tmp_path / "bee" / "deep.tif")
    with pytest.raises(ValueError, match=rf"deep\.tif: .*expected 8 or 16 bits, got 32 \(mode {mode}\)"):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_photographs_are_turned_as_their_camera_says(tmp_path, suffix):
    lying = Image.new("RGB", (16, 8))
    lying.paste((255, 255, 255), (0, 0, 8, 8))  # the left half, which is the upper one once it stands
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn it clockwise
    for name in "ab":
        (tmp_path / name).mkdir()
        lying.save(tmp_path / name / f"1.{suffix}", exif=exif)
    x = load(tmp_path, validation=0, test=0).train.x
    assert x.shape == (2, 3, 16, 8) and int(x[:, :, :8].min()) > 250 and int(x[:, :, 8:].max()) < 5


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*"], ids=["garbage", "cut off"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_an_exif_that_can_not_be_read_turns_nothing(tmp_path, suffix, exif):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (6, 5)).save(tmp_path / name / f"1.{suffix}", exif=exif)
    assert load(tmp_path, validation=0, test=0).shape == (3, 5, 6)


def test_sizes_differ_unless_size_is_given(tmp_path):
    _folder(tmp_path)
    _image(tmp_path / "bee" / "wide.png", size=(20, 5))
    with pytest.raises(
        ValueError,
        match=r"wide\.png: expected 6 x 5 pixels as 0\.png has, got 20 x 5; pass size= \(on the command line --size\)",
    ):
        load(tmp_path)
    data = load(tmp_path, size=4)
    assert data.shape == (3, 4, 4)
    # the shorter side is scaled and the centre kept: a mark at the far left is cut away, one at the centre stays
    marked = Image.new("RGB", (20, 5))
    marked.paste((255, 255, 255), (0, 0, 5, 5))
    marked.save(tmp_path / "bee" / "wide.png")
    assert int(load(tmp_path, size=5, validation=0, test=0).train.x[-1].max()) == 0
    marked.paste((255, 255, 255), (8, 0, 12, 5))
    marked.save(tmp_path / "bee" / "wide.png")
    assert int(load(tmp_path, size=5, validation=0, test=0).train.x[-1].max()) == 255


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_among_images_is_not_waited_for(tmp_path):
    _folder(tmp_path)
    os.mkfifo(tmp_path / "bee" / "3a.png")
    with pytest.raises(ValueError, match=r"bee.3a\.png: expected an image, got something that is no file"):
        load(tmp_path)


def test_images_that_do_not_decode_are_named(tmp_path):
    _folder(tmp_path)
    whole = (tmp_path / "bee" / "0.png").read_bytes()
    for content in (b"no image at all", whole[:40], b""):
        (tmp_path / "bee" / "3.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"bee.3\.png: could not decode"):
            load(tmp_path)


def test_folders_without_classes_or_images(tmp_path):
    with pytest.raises(ValueError, match="one subfolder of images per class"):
        load(tmp_path)
    (tmp_path / "ant").mkdir()
    with pytest.raises(ValueError, match="ant: expected images"):
        load(tmp_path)
    _image(tmp_path / "ant" / "1.png")
    with pytest.raises(ValueError, match="only 'ant'"):
        load(tmp_path)
    _folder(tmp_path / "split" / "train")
    _folder(tmp_path / "split" / "test", classes=("ant", "wasp"))
    with pytest.raises(ValueError, match="wasp: expected the classes of train"):
        load(tmp_path / "split")


def test_folder_shows_progress(tmp_path, capsys):
    _folder(tmp_path)
    load(tmp_path)
    assert capsys.readouterr().out == ""
    load(tmp_path, progress=True)
    assert "reading images" in capsys.readouterr().out
