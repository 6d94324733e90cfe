"""Sources that fit in memory or need none: `digits`, `idx:DIR` and `fake`."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import importlib.util
import pathlib
import zlib

import ml_collections
import numpy as np

from vit_jax.data.sources.examples import Example, Source
from vit_jax.data.sources.split_names import EVALUATION_SPLITS
from vit_jax.data.sources.splits import Shape, Splits
from vit_jax.errors import ConfigError, DataError

_MOST_DIMENSIONS = 4  # Images, rows, columns, channels.


@dataclasses.dataclass(frozen=True)
class Arrays(Source):
    """A split that fits in memory: images uint8 [N, H, W, C] and labels [N]."""

    split: str
    images: np.ndarray
    labels: np.ndarray = dataclasses.field()
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return Example(self.images[index], int(self.labels[index]), self.name_of(index))

    def name_of(self, index: int) -> str:
        """The example's name."""
        return f"{self.split}/{index}"


def digits(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """Scikit-learn's 1,797 digits, 8×8×1; a fixed stratified 360 of them are the test split."""
    del location, data, shape
    # Importing sklearn takes seconds; its data file is all that is wanted.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "config.data.source=digits reads scikit-learn's file: install scikit-learn."
        )
    path = pathlib.Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.int32)
    images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1]
    test = _stratified_choice(labels, 360)
    names = tuple("0123456789")
    return {
        "train": lambda: Arrays("train", images[~test], labels[~test], names),
        "test": lambda: Arrays("test", images[test], labels[test], names),
    }


def _stratified_choice(labels: np.ndarray, size: int) -> np.ndarray:
    """A mask over `labels` with `size` True, the same share of each class to within one."""
    # Ranks within the class, in a fixed random order (raw bits: NumPy keeps them for ever) and
    # scaled by the class's size, spread each class evenly over [0, 1).
    bits = np.random.Philox(key=0).random_raw(len(labels))
    position = np.empty(len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        position[members[np.argsort(bits[members])]] = (np.arange(len(members)) + 0.5) / len(
            members
        )
    chosen = np.zeros(len(labels), bool)
    chosen[np.argsort(position, kind="stable")[:size]] = True
    return chosen


def idx(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """MNIST's file format: DIR/train-images-idx3-ubyte[.gz] and its three siblings."""
    del data
    folder = pathlib.Path(location).expanduser()
    prefixes = {"train": "train", "test": "t10k"}
    found = {
        split: prefix
        for split, prefix in prefixes.items()
        if any(folder.glob(f"{prefix}-images[-.]idx[34]-ubyte*"))
    }
    if not found:
        raise DataError(
            f"No IDX files in {folder}: expected train-images-idx3-ubyte.gz, "
            "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz, "
            "with or without .gz."
        )

    def open_split(split: str) -> Arrays:
        prefix = found[split]
        images_path = _find_idx(folder, f"{prefix}-images[-.]idx[34]-ubyte")
        labels_path = _find_idx(folder, f"{prefix}-labels[-.]idx1-ubyte")
        images, labels = read_idx(images_path), read_idx(labels_path)
        if images.ndim not in (3, 4) or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{images_path} has shape {images.shape} and {labels_path} {labels.shape}; "
                "expected [N, height, width] or [N, height, width, channels], and [N]."
            )
        known = read_idx(_find_idx(folder, f"{found.get('train', prefix)}-labels[-.]idx1-ubyte"))
        num_classes = shape.num_classes or int(known.max(initial=0)) + 1
        if labels.max(initial=0) >= num_classes:
            raise DataError(
                f"{labels_path} has the label {labels.max()}, beyond the {num_classes} classes "
                "of the training split and the model."
            )
        images = images[..., np.newaxis] if images.ndim == 3 else images
        return Arrays(split, images, labels, tuple(map(str, range(num_classes))))

    return {split: functools.partial(open_split, split) for split in found}


def _find_idx(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    paths = sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])
    if not paths:
        raise DataError(f"No file {pattern.replace('[-.]', '-')}[.gz] in {folder}.")
    return paths[0]


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Reads an IDX file of bytes, gzipped if its name ends in ".gz", as a uint8 array.

    The format: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
    dimension as a big-endian 32-bit integer, the values in row-major order.

    Raises:
        DataError: the file is unreadable, truncated, or of another type; the message names it.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again.") from error
    header = content[:4]
    rank = header[3] if len(header) == 4 else 0
    if (
        header[:3] != b"\x00\x00\x08"
        or not 0 < rank <= _MOST_DIMENSIONS
        or len(content) < 4 + 4 * rank
    ):
        raise DataError(
            f"{path}: not an IDX file of unsigned bytes; it starts with 0x{header.hex()}, "
            "expected 0x00000803 or 0x00000804 for images, 0x00000801 for labels."
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">i4", rank, 4))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if min(shape) < 0 or 0 in shape[1:] or values.size != np.prod(shape, dtype=np.int64):
        raise DataError(
            f"{path}: its header promises shape {shape}, but {values.size:,} values follow; "
            "download it again."
        )
    return values.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Fake(Source):
    """Patterns made from the index and the label: deterministic, cheap, and learnable."""

    size: int
    shape: Shape
    offset: int  # Sets one split's images apart from another's.

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels' numbers."""
        return tuple(map(str, range(self.shape.num_classes)))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        (height, width), channels, num_classes = self.shape
        label = index % num_classes
        seed = self.offset + index
        # uint8 arithmetic wraps around: stripes whose spacing tells the label.
        rows = (np.arange(height) * (label + 1) + seed).astype(np.uint8)
        columns = (np.arange(width) * (seed % 7) + seed // 256).astype(np.uint8)
        tints = (np.arange(channels) * 85).astype(np.uint8)
        image = rows[:, None, None] + columns[:, None] + tints
        return Example(image, label, self.name_of(index))

    def name_of(self, index: int) -> str:
        """The example's name."""
        return f"fake/{index}"


def fake(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """Needs no files; `num_train_examples` and `num_eval_examples` give the sizes."""
    del location
    shape = shape._replace(num_classes=shape.num_classes or data.num_classes)
    if not shape.num_classes:
        raise ConfigError("config.data.source=fake needs --config.model.num_classes=NUMBER.")
    train = functools.partial(Fake, data.num_train_examples or 1024, shape, 0)
    evaluation = functools.partial(Fake, data.num_eval_examples or 64, shape, 1 << 16)
    splits: Splits = {"train": train, **dict.fromkeys(EVALUATION_SPLITS, evaluation)}
    # Those numbers are the sizes of the splits as configured, whatever slices they name.
    if data.num_eval_examples and data.eval_split:
        splits[data.eval_split] = evaluation
    if data.num_train_examples:
        splits[data.train_split] = train
    return splits
