"""The images of a tar shard, and their labels.

WebDataset's layout: the files of a sample have the same name up to the first dot of the last part:
`KEY.jpg` with the label in `KEY.cls`, a whole number, or in `KEY.json`, {"label": number or list of
numbers}. Without any label in a shard, an image's class is its folder in the tar file, or, in no
folder, the shard itself if the image is named after it, as in ImageNet's own `n01440764.tar` with
`n01440764_18.JPEG`.
"""

from __future__ import annotations

import itertools
import json
import logging
import posixpath
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from vit_jax.data.images.values import NPY_EXTENSION
from vit_jax.data.sources.contents import IMAGE_EXTENSIONS, describe_extensions, is_array, is_system
from vit_jax.data.sources.names import Names
from vit_jax.data.sources.record_index import Arrays, Forward, extents
from vit_jax.data.sources.split_names import purpose_of
from vit_jax.data.sources.splits import uniform_hash
from vit_jax.data.sources.tar_members import Member, members
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

_LONGEST_LABEL = 1 << 20  # Bytes, of the file that holds it.
_DOTS = "a sample's name ends, and the extension begins, at the first dot"
_HIGHEST_CLASS = 1 << 24
_IMAGES = (*IMAGE_EXTENSIONS, NPY_EXTENSION)  # What the images of a shard are called.


Label = int | list[int]


def scan(file: Forward) -> Arrays:
    """Finds the images of a shard.

    Returns:
        What `extents` returns, from an image's header to its end, and
        name: uint8 [bytes], all names; name_end: int64 [N], where each ends;
        hash: float64 [N], `uniform_hash` of the name;
        label: int32 [L]; count: int32 [N], how many an image has, empty if each has just one;
        classes: uint8 [bytes], joined by NUL, which labels number; empty if labels are
        numbers.

    Raises:
        DataError: the shard is damaged; an image has no label, or a label no image; or a name or
            key is there twice.
    """
    images, texts = _files(file)
    given = _given_labels(texts, file.path)
    _check_one_split(images, -1 if given else -2, file.path)
    if given:
        images, labels, classes = *_pairs(images, given, file.path), []
    else:
        folders = [_class_of(name, file.path) for name in images]
        classes = sorted(set(folders))
        labels = list(map({name: number for number, name in enumerate(classes)}.get, folders))
    found = images.values()
    names = [member.name.encode("utf-8", "surrogateescape") for member in found]
    has_lists = any(isinstance(label, list) for label in labels)
    lists = [label if isinstance(label, list) else [label] for label in labels]
    return {
        **extents([member.start for member in found], [member.stop for member in found], file.path),
        "name": _as_array(b"".join(names)),
        "name_end": np.cumsum(list(map(len, names)), dtype=np.int64),
        "hash": np.array([uniform_hash(member.name) for member in found], np.float64),
        "label": np.array(list(itertools.chain.from_iterable(lists)), np.int32),
        "count": np.array(list(map(len, lists)) if has_lists else [], np.int32),
        "classes": _as_array("\0".join(classes).encode("utf-8", "surrogateescape")),
    }


def _files(file: Forward) -> tuple[dict[str, Member], dict[str, str]]:
    """The images, and the contents of *.cls and *.json, by name."""
    images, arrays, texts, links = {}, {}, {}, []
    ignored: Counter[str] = Counter()
    for member in members(file):
        name = member.name.lower()
        if any(is_system(part) for part in name.split("/") if part not in ("", ".", "..")):
            continue
        if member.is_link:
            links.append(member.name)
        if not member.is_file:
            continue
        if not name.endswith((*_IMAGES, *_LABEL_EXTENSIONS)):
            ignored[posixpath.splitext(name)[1]] += 1
            continue
        if member.name in images or member.name in arrays or member.name in texts:
            raise DataError(
                f"{file.path} holds {member.name} twice, the second time at byte {member.start:,}."
            )
        if is_array(posixpath.basename(name)):
            arrays[member.name] = member
        elif name.endswith(IMAGE_EXTENSIONS):
            images[member.name] = member
        else:
            texts[member.name] = _text(file, member)
    if images:  # Arrays beside pictures are something else.
        ignored[NPY_EXTENSION] += len(arrays)
    else:
        images = arrays
    if links:
        logger.warning(
            "%s: %d links are left out, such as %s; pack what they lead to, with `tar --dereference "
            "--hard-dereference`.",
            file.path,
            len(links),
            links[0],
        )
    if +ignored and not texts:  # Samples have what they like beside their image.
        logger.warning(
            "%s: files that are no images, by extension: %s",
            *(file.path, describe_extensions(+ignored)),
        )
    return images, texts


def _check_one_split(names: Iterable[str], end: int, path: str) -> None:
    """Raises DataError if the images' folders, up to part `end` of a name, are called as splits."""
    found = {folder: purpose_of(folder) for name in names for folder in name.split("/")[:end]}
    splits = {purpose: folder for folder, purpose in found.items() if purpose}
    if len(splits) > 1:
        raise DataError(
            f"{path}: its images lie in folders called {' and '.join(splits.values())}, which would "
            "be mixed: pack each split into a tar file of its own, with the split's name in its own."
        )


def _text(file: Forward, member: Member) -> str:
    if member.stop - member.content > _LONGEST_LABEL:
        raise DataError(
            f"{file.path}: {member.name} has {member.stop - member.content:,} bytes, too many for "
            "a label."
        )
    return file.read(member.content, member.stop).decode("utf-8", "replace")


def _given_labels(texts: dict[str, str], path: str) -> dict[str, Label]:
    """The labels by key; a .cls comes before a .json, which may have none."""
    labels: dict[str, Label] = {}
    for name in sorted(texts, key=lambda name: not name.lower().endswith(".cls")):
        key, extension = split_name(name)
        if extension not in _LABEL_EXTENSIONS and extension.endswith(".cls"):
            raise DataError(f"{path}: {name} belongs to no image: {_DOTS}.")
        if extension not in _LABEL_EXTENSIONS or (extension == ".json" and key in labels):
            continue
        try:
            label = _LABEL_EXTENSIONS[extension](texts[name])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: {name} holds no label: {error}.") from error
        if label is not None:
            labels[key] = label
    return labels


def _from_cls(text: str) -> int:
    try:
        return _checked(int(text))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no whole number from 0 on") from None


def _from_json(text: str) -> Label | None:
    value = json.loads(text)
    label = value.get("label") if isinstance(value, dict) else None
    if isinstance(label, list):
        return list(map(_checked, label))
    return label if label is None else _checked(label)


def _checked(label: Any) -> int:
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label <= _HIGHEST_CLASS:
        raise ValueError(f'"label" is {label!r}, neither a number from 0 on nor a list of them')
    return label


_LABEL_EXTENSIONS = {".cls": _from_cls, ".json": _from_json}


def _pairs(
    images: dict[str, Member], labels: dict[str, Label], path: str
) -> tuple[dict[str, Member], list[Label]]:
    """The images by key, with their labels; raises DataError if one lacks the other."""
    by_key: dict[str, Member] = {}
    others: dict[str, str] = {}  # Such as KEY.mask.png, by key.
    for name, member in images.items():
        key, extension = split_name(name)
        if extension not in _IMAGES:
            others[key] = name
        elif key in by_key:
            raise DataError(f"{path}: {by_key[key].name} and {name} are two images of one sample.")
        else:
            by_key[key] = member
    for key, member in by_key.items():
        if key not in labels:
            raise DataError(
                f"{path}: {member.name} has no label; expected {key}.cls with a number, or "
                f'{key}.json with "label".'
            )
    for key in [*labels, *others]:
        if key not in by_key:
            raise DataError(
                f"{path}: there is {others.get(key, f'a label of {key}')}, but no image {key} with "
                f"one of {', '.join(_IMAGES)}; {_DOTS}."
            )
    return by_key, [labels[key] for key in by_key]


def _class_of(name: str, path: str) -> str:
    """The class that an image's folder, or a shard of one class, says."""
    folder, base = posixpath.split(name)
    if folder:
        return posixpath.basename(folder)
    shard = posixpath.basename(path).partition(".")[0]
    if base.startswith(f"{shard}_"):
        return shard
    key = split_name(name)[0]
    raise DataError(
        f"{path}: {name} has no label; expected {key}.cls with a number, {key}.json with "
        '"label", or a folder with the name of the class.'
    )


def split_name(name: str) -> tuple[str, str]:
    """A sample's key and a file's extension, in small letters, from the base's first dot on."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    return folder + slash + stem, dot + extension.lower()


def _as_array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def names_of(arrays: Arrays) -> Names:
    """The names of a shard's images."""
    return Names(arrays["name"], np.concatenate([[0], arrays["name_end"]]))


def classes_of(arrays: Arrays) -> list[str]:
    """The classes that are folders in a shard; empty if labels are numbers."""
    text = arrays["classes"].tobytes().decode("utf-8", "surrogateescape")
    return text.split("\0") if text else []
