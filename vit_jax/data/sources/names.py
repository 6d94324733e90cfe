"""Millions of names and labels as a few arrays, and the source of image files that they make up."""

from __future__ import annotations

import array
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vit_jax import storage
from vit_jax.data.sources.examples import Example, Labels, Source, as_label
from vit_jax.errors import DataError

_CHUNK = 1 << 16  # Names that are moved at once, which bounds what is held twice.


class Names(Sequence[str]):
    """A sequence of strings in two arrays: some 50 bytes a name instead of 150, and mapped if saved.

    Bytes that are not UTF-8, as in the names of some old files, are kept (`surrogateescape`).
    Pickled, saved names are the path of their files; others are their two arrays.
    """

    def __init__(self, text: np.ndarray, offsets: np.ndarray, path: str = ""):
        self._text = text  # uint8 [bytes]
        self._offsets = offsets  # int64 [N + 1]
        self._path = path

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """The names given, in their order."""
        text, lengths = bytearray(), array.array("q")
        for name in names:
            encoded = name.encode("utf-8", "surrogateescape")
            text += encoded
            lengths.append(len(encoded))
        return cls(np.array(text, np.uint8), _offsets(np.array(lengths, np.int64)))

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Names:
        """The names of one part after another."""
        lengths = [np.diff(part._offsets) for part in parts]
        text = np.concatenate([np.empty(0, np.uint8), *(part._text for part in parts)])
        return cls(text, _offsets(np.concatenate([np.empty(0, np.int64), *lengths])))

    @classmethod
    def open(cls, path: str) -> Names:
        """Names that were saved as `path`.npy, mapped into memory; raises what NumPy raises."""
        text, offsets = (
            np.asarray(np.load(f"{path}{suffix}.npy", mmap_mode="r", allow_pickle=False))
            for suffix in ("", "_offsets")
        )
        if text.dtype != np.uint8 or offsets.dtype != np.int64 or offsets[-1:] != len(text):
            raise ValueError(f"{path}.npy and {path}_offsets.npy do not fit each other")
        return cls(text, offsets, path)

    def save(self, path: str) -> None:
        """Writes `path`.npy and `path`_offsets.npy."""
        np.save(f"{path}.npy", self._text, allow_pickle=False)
        np.save(f"{path}_offsets.npy", self._offsets, allow_pickle=False)

    def take(self, indices: np.ndarray) -> Names:
        """The names at `indices` [M], in that order."""
        lengths = np.diff(self._offsets)[indices]
        offsets = _offsets(lengths)
        text = np.empty(offsets[-1], np.uint8)
        for start in range(0, len(indices), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            first, last = offsets[start], offsets[start + len(indices[chunk])]
            # Where each byte comes from: its offset here, moved as far as its name is moved.
            moved = self._offsets[indices[chunk]] - offsets[start : start + len(indices[chunk])]
            text[first:last] = self._text[np.arange(first, last) + np.repeat(moved, lengths[chunk])]
        return Names(text, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        encoded = self._text[self._offsets[index] : self._offsets[index + 1]].tobytes()
        return encoded.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def __reduce__(self) -> tuple:
        if self._path:
            return Names.open, (self._path,)
        return Names, (self._text, self._offsets)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class ImageFiles(Source):
    """Encoded image files, read when asked for.

    `names` are paths below `root`, with "/", or complete paths and URLs.
    """

    root: str
    names: Names
    labels: Labels = dataclasses.field()
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | DataError]:
        """Several examples, of a store side by side; what fails stands for itself."""
        paths = [self._path(self.names[index]) for index in indices]
        for index, path, image in zip(
            indices, paths, storage.read_many([storage.Part(path) for path in paths]), strict=True
        ):
            if isinstance(image, OSError):
                yield DataError(f"{path} cannot be read ({storage.reason_of(image)})")
            elif isinstance(image, DataError):
                yield image
            else:
                yield Example(image, as_label(self.labels[index]), self.names[index])

    @property
    def remote(self) -> bool:
        """Whether the root, or the first complete name, is a URL."""
        return len(self.names) > 0 and storage.is_remote(self._path(self.names[0]))

    @property
    def one_file_each(self) -> bool:
        """Always."""
        return True

    def _path(self, name: str) -> str:
        complete = storage.is_remote(name) or os.path.isabs(name)
        return name if complete else storage.join(self.root, name)

    def name_of(self, index: int) -> str:
        """The name of an example, without reading it."""
        return self.names[index]
