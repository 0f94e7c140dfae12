"""A folder of images by class, folder/class/number.png: circles, squares, triangles and crosses on noise.

python examples/make_image_folder.py shapes
squareloss compare shapes --quick
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("circle", "square", "triangle", "cross")


def draw(kind: str, rng: np.random.Generator, size: int = 32) -> Image.Image:
    noise = rng.normal(60, 15, (size, size, 3)).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(noise)
    pen, colour = ImageDraw.Draw(image), tuple(int(c) for c in rng.integers(110, 256, 3))
    radius = rng.uniform(4, 9)
    x, y = rng.uniform(radius, size - radius, 2)
    if kind == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif kind == "cross":
        pen.line((x - radius, y, x + radius, y), fill=colour, width=3)
        pen.line((x, y - radius, x, y + radius), fill=colour, width=3)
    else:
        pen.regular_polygon((x, y, radius), 4 if kind == "square" else 3, rotation=int(rng.integers(360)), fill=colour)
    return image


def main(folder: str, each: int = 150) -> None:
    rng = np.random.default_rng(0)
    for kind in CLASSES:
        place = Path(folder, kind)
        place.mkdir(parents=True, exist_ok=True)
        for i in range(each):
            draw(kind, rng).save(place / f"{i:04}.png")
    print(f"{folder}: {each} images of each of {', '.join(CLASSES)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="shapes")
    main(parser.parse_args().folder)
