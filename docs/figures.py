"""Makes the pictures in docs/images from the model of `make demo`: `make figures`.

The figure of the study in docs/studies.md is drawn where it has been run, in runs/study.
Screenshots of the reports need Chromium (`apt install chromium`); without it they stay as they are.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from vit_jax import analyze, report, study

IMAGES = pathlib.Path(__file__).parent / "images"
MODEL, PICTURES = "runs/digits", "runs/pictures"
STUDY, STUDY_DIRECTORY = "fashion_mnist", pathlib.Path("runs/study")
FIRST_TEST_IMAGE = 1437
SHOWN = ("rollout", "distance", "positions", "tsne")
WIDTHS = (390, 1280)  # Of a phone and of a desk, in pixels.
HEIGHT = 1600
COLORS = 64


def write_pictures(folder: pathlib.Path) -> None:
    """The test images of digits as files, a folder for each class."""
    digits = load_digits()
    for number in range(FIRST_TEST_IMAGE, len(digits.images)):
        path = folder / str(digits.target[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 255 / 16).astype(np.uint8)).save(path)


def write_small(source: pathlib.Path, target: pathlib.Path) -> None:
    """A picture with few colours, as PNG."""
    target.parent.mkdir(exist_ok=True)
    Image.open(source).convert("RGB").quantize(COLORS).save(target, optimize=True)


def take_screenshots(page: pathlib.Path, name: str, folder: pathlib.Path) -> None:
    """The top of a page in each width; exits if the page has an error or asks for anything."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print(f"No Chromium: no screenshots of {name}.")
        return
    for width in WIDTHS:
        shot = folder / f"{name}_{width}.png"
        command = [browser, "--headless", "--disable-gpu", "--hide-scrollbars"]
        command += ["--enable-logging=stderr", f"--screenshot={shot}"]
        command += [f"--window-size={width},{HEIGHT}", *["--no-sandbox"] * (os.geteuid() == 0)]
        said = subprocess.run(
            [*command, page.as_uri()], check=True, capture_output=True, text=True
        ).stderr
        if "CONSOLE" in said:
            sys.exit(f"{page}: {said}")
        write_small(shot, IMAGES / shot.name)


def main() -> None:
    """Makes all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_pictures(pathlib.Path(PICTURES))
        analyze.run([MODEL, f"--images={PICTURES}", f"--output={folder / 'inside'}"])
        report.run([MODEL, f"--output={folder / 'report.html'}"])
        for figure in SHOWN:
            write_small(folder / "inside" / f"{figure}.png", IMAGES / f"{figure}.png")
        take_screenshots(folder / "inside" / "report.html", "analyze", folder)
        take_screenshots(folder / "report.html", "report", folder)
        if STUDY_DIRECTORY.is_dir():
            study.run([STUDY, f"--workdir={STUDY_DIRECTORY}", "--draw"])
            write_small(STUDY_DIRECTORY / "size.png", IMAGES / "study.png")


if __name__ == "__main__":
    main()
