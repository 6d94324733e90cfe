"""What in a folder is data: pictures, and neither what systems nor what runs leave beside them."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from PIL import Image

from vit_jax import storage
from vit_jax.data.images.values import NPY_EXTENSION
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

# Of each format that can be decoded, what its files' names end in.
_EXTENSIONS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "BMP": (".bmp",),
    "DIB": (".dib",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "JPEG2000": (".jp2", ".j2k", ".jpf", ".jpx"),
    "TGA": (".tga",),
    "PCX": (".pcx",),
    "SGI": (".sgi",),
    "QOI": (".qoi",),
    "DDS": (".dds",),
    "PSD": (".psd",),
}
IMAGE_EXTENSIONS = tuple(extension for names in _EXTENSIONS.values() for extension in names)

_FORMATS = tuple(name for name in _EXTENSIONS if name != "TGA")  # Which has no mark of its own.
_OTHER_EXTENSIONS = {  # Of files that lie beside pictures in large numbers: they are not opened.
    *(".txt", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".md", ".html", ".cls"),
    *(".npy", ".npz", ".mat", ".pkl", ".pt", ".zip", ".tar", ".gz", ".mp4", ".avi", ".pdf", ".py"),
}

# What Synology and QNAP boxes, Windows, macOS, Linux and archives of macOS keep for themselves,
# besides names that begin with a dot.
_SYSTEM_NAMES = {
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp", "@sharebin"),
    *("$recycle.bin", "recycler", "system volume information", "thumbs.db", "desktop.ini"),
    *("__macosx", "network trash folder", "temporary items", "lost+found", "__pycache__"),
}

# A folder with `model.json`, or with `config.json` and one of these, holds a run or an export.
_BESIDE_CONFIG = {"checkpoints", "metrics.jsonl", "compilation_cache", "pytorch_model.bin"}
_WEIGHTS = ".safetensors"

Directory = tuple[str, int]  # Its path relative to the root, and when it was modified.
UNWATCHED = -1  # In place of that time: what changes in it does not matter.


def is_system(name: str) -> bool:
    """Whether a file or folder is hidden, or a system's own."""
    return name[0] == "." or name.casefold() in _SYSTEM_NAMES


def is_image(name: str) -> bool:
    """Whether a file's name says that it is an image, and not a hidden one."""
    return not is_system(name) and name.lower().endswith(IMAGE_EXTENSIONS)


def is_array(name: str) -> bool:
    """Whether a file's name says that it is a NumPy array, and not a hidden one.

    Such files are images where there are none of other formats: beside these they are something else.
    """
    return not is_system(name) and name.lower().endswith(NPY_EXTENSION)


def holds_run(names: Collection[str]) -> bool:
    """Whether a folder with these files and folders in it is a run's or an export of a model."""
    if "model.json" in names:
        return True
    return "config.json" in names and any(
        name in _BESIDE_CONFIG or name.endswith(_WEIGHTS) for name in names
    )


def _is_image_inside(path: str) -> bool:
    """Whether a local file's content is an image, by the marks that it begins with."""
    if storage.is_remote(path) or not os.path.isfile(path):  # A link may lead to a pipe.
        return False
    try:
        with Image.open(path, formats=_FORMATS):
            return True
    except Exception:  # Whatever Pillow meets in what is none.
        return False


class Header(NamedTuple):
    """What an image file begins with says of it."""

    extension: str  # that its name should have, with the dot
    is_grey: bool  # of 8 bits or fewer


def read_header(content: bytes) -> Header | None:
    """The header of an image file of any format, which is not decoded; None: it is none."""
    try:
        with Image.open(io.BytesIO(content), formats=tuple(_EXTENSIONS)) as file:
            return Header(_EXTENSIONS[file.format or ""][0], file.mode in ("1", "L"))
    except Exception:  # As above.
        return None


@dataclasses.dataclass
class Walk:
    """The image files below a folder, and a record of what else was met.

    Attributes:
        root: a path or URL; all others are relative to it.
        directories: that were listed.
        ignored: how many files were left out, by extension.
        by_content: how many are images though their extension does not say so, by extension.
        runs: folders that hold runs or exports, which are no data.
    """

    root: str
    directories: list[Directory] = dataclasses.field(default_factory=list)
    ignored: Counter[str] = dataclasses.field(default_factory=Counter)
    by_content: Counter[str] = dataclasses.field(default_factory=Counter)
    runs: list[str] = dataclasses.field(default_factory=list)

    def images_below(
        self, folder: str, above: frozenset[tuple[int, int]] = frozenset()
    ) -> Iterator[str]:
        """The image files anywhere below `folder`; hidden ones are not.

        Links to folders are followed, but not back to one that they lie in. Raises DataError if a
        folder cannot be listed.
        """
        path = storage.join(self.root, folder)
        modified = 0
        if not storage.is_remote(path):
            status = status_of(path)
            modified, identity = status.st_mtime_ns, (status.st_dev, status.st_ino)
            if identity in above:
                return
            above |= {identity}
        entries = [entry for entry in storage.list_folder(path) if not is_system(entry.name)]
        if holds_run({entry.name for entry in entries}):
            self.runs.append(folder)
            self.directories.append((folder, UNWATCHED))
            return
        self.directories.append((folder, modified))
        arrays = not any(is_image(name) for name, is_folder in entries if not is_folder)
        for name, is_folder in entries:
            if is_folder:
                yield from self.images_below(f"{folder}/{name}", above)
            elif self._is_image(storage.join(path, name), name, arrays):
                yield f"{folder}/{name}"

    def _is_image(self, path: str, name: str, arrays: bool) -> bool:
        """Whether a file is an image; `arrays`: those of NumPy are."""
        if is_image(name) or (arrays and is_array(name)):
            return True
        extension = os.path.splitext(name)[1].lower()
        found = extension not in _OTHER_EXTENSIONS and _is_image_inside(path)
        (self.by_content if found else self.ignored)[extension] += 1
        return found

    def joined(self, others: Sequence[Walk]) -> Walk:
        """A record of this walk and of others from the same root."""
        walks = (self, *others)
        return Walk(
            self.root,
            [directory for walk in walks for directory in walk.directories],
            sum((walk.ignored for walk in walks), Counter()),
            sum((walk.by_content for walk in walks), Counter()),
            [folder for walk in walks for folder in walk.runs],
        )

    def report(self, where: str) -> None:
        """Logs what was left out, and what was taken for an image by its content."""
        if self.runs:
            logger.warning(
                "%s: folders that hold runs or exports, which are no data: %s",
                *(where, ", ".join(self.runs)),
            )
        if self.by_content:
            logger.info(
                "%s: images by their content, whatever their extension: %s",
                *(where, describe_extensions(self.by_content)),
            )
        if self.ignored:
            logger.warning(
                "%s: files that are no images, by extension: %s",
                *(where, describe_extensions(self.ignored)),
            )


def describe_extensions(counts: Counter[str]) -> str:
    """The numbers of files by extension, the most first: "12 .txt, 1 without"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {name or 'without'}" for name, count in ordered)


def status_of(folder: str) -> os.stat_result:
    """The status of a local folder; raises DataError."""
    try:
        return os.stat(folder)
    except OSError as error:
        raise DataError(f"{folder}: this folder cannot be listed ({error.strerror})") from error
