"""Digests of checkpoints' files: what is read is what was saved.

Array files have no checksum of their own, so a flipped bit would be trained on in silence. Once a
checkpoint is complete, each process writes the digests of the files that it wrote to
`<step>/digests.process_<index>.json`; whoever reads the checkpoint compares them.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterator

import jax
from etils import epath

from vit_jax.devices import distributed
from vit_jax.errors import CheckpointError
from vit_jax.storage import write_json

CHUNK_BYTES = 1 << 24
PREFIX = "digests.process_"
HIDDEN = (
    "."  # In a checkpoint's own folder: other processes' digests, while they are being written.
)
WRITER = re.compile(r"(?:^|[/.])process_(\d+)(?:/|$)")  # params/ocdbt.process_1/d/...

logger = logging.getLogger(__name__)


def write(folder: epath.Path, process_index: int) -> None:
    """Writes the digests of the files below `folder` that this process wrote."""
    own = [name for name in _names(folder) if writer_of(name) == process_index]
    digests = {name: digest(folder / name) for name in own}
    write_json(folder / f"{PREFIX}{process_index}.json", digests)


def check(
    directory: epath.Path, step: int, items: Collection[str] | None = None, *, shared: bool = False
) -> bool:
    """Whether there are digests; raises CheckpointError if a file is not as it was saved.

    Args:
      directory: where the checkpoints are.
      step: the checkpoint's.
      items: the names in its folder that are read; None: all that it has.
      shared: all processes call this: each compares some of the files, and all raise if one does.
    """
    folder, index, count = directory / str(step), 0, 1
    if shared:
        index, count = jax.process_index(), jax.process_count()
    reason, digests = "", {}
    try:
        digests = _read(folder)
        reason = _find_damage(folder, digests, items, index, count)
    except (ValueError, OSError) as error:
        reason = f"its digests cannot be read: {error}"
    if shared and count > 1:
        found = distributed.gather(bool(reason))
        if found.any() and not reason:
            reason = f"process {found.argmax()} names the file"
    if reason:
        raise damaged(directory, step, reason)
    return bool(digests)


def damaged(directory: epath.Path, step: int, reason: str) -> CheckpointError:
    """The error that says what is wrong with a checkpoint, and how to go on without it."""
    every = steps(directory)
    older = [other for other in every if other < step]
    whole = next((other for other in reversed(older) if is_whole(directory, other)), None)
    if every and step < every[-1]:
        advice = f"Others are not concerned: to go on without it, rename it to {step}.damaged."
    elif whole is None:
        advice = (
            "There is no older one that is whole: restore its files, or start in another --workdir."
        )
    else:
        advice = (
            f"Checkpoint {whole} is whole: --checkpoint={whole} goes on from it, and renames later "
            f"ones to {step}.damaged."
        )
    return CheckpointError(f"{directory}/{step} is damaged ({reason}). {advice}")


def is_whole(directory: epath.Path, step: int) -> bool:
    """Whether all files of a checkpoint are as they were saved, as far as digests tell."""
    try:
        folder = directory / str(step)
        return not _find_damage(folder, _read(folder), None, 0, 1)
    except (ValueError, OSError):
        return False


def steps(directory: epath.Path) -> list[int]:
    """The steps of the complete checkpoints in `directory`, in their order."""
    if not directory.exists():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def go_back(workdir: str | os.PathLike[str], step: int) -> None:
    """Makes `step` a run's latest checkpoint: renames later ones to `<step>.damaged`.

    Raises CheckpointError if it is not there, or damaged itself.
    """
    directory = epath.Path(workdir).absolute() / "checkpoints"
    present = steps(directory)
    if step not in present:
        raise CheckpointError(
            f"--checkpoint={step}: {directory} has no such checkpoint; it has: "
            f"{', '.join(map(str, present)) or 'none'}."
        )
    check(directory, step)
    distributed.gather(0)  # All have read before anything is renamed.
    if jax.process_index() == 0:
        for later in present[present.index(step) + 1 :]:
            target = directory / f"{later}.damaged"
            while target.exists():
                target = target.with_name(f"{target.name}.damaged")
            (directory / str(later)).rename(target)
            logger.warning("%s/%d is now %s.", directory, later, target.name)
    distributed.gather(0)  # All see the same checkpoints from here on.


def digest(path: epath.Path) -> str:
    """A file's BLAKE2 digest of 128 bits, in hexadecimal."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


def writer_of(name: str) -> int:
    """The process that wrote a file of a checkpoint; 0 writes all whose names have no number."""
    found = WRITER.search(name)
    return int(found[1]) if found else 0


def _read(folder: epath.Path) -> dict[str, str]:
    """The digest of each file by its name below `folder`; empty if nobody wrote any.

    Raises ValueError or OSError if one cannot be read.
    """
    digests: dict = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(PREFIX) and path.name.endswith(".json"):
            content = json.loads(path.read_bytes())
            if not isinstance(content, dict) or not content:
                raise ValueError(f"{path.name} holds none")
            digests |= content
    return {name: value for name, value in digests.items() if not name.startswith(HIDDEN)}


def _find_damage(
    folder: epath.Path,
    digests: dict[str, str],
    items: Collection[str] | None,
    index: int,
    count: int,
) -> str:
    """The first file of every `count`th that is not as saved, and why; "" if all are."""
    names = [name for name in digests if items is None or name.partition("/")[0] in items]
    for name in sorted(names)[index::count]:
        try:
            if digest(folder / name) != digests[name]:
                return f"{name} is not what was saved"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return ""


def _names(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    """The files below `folder`, by "/", but for the digests themselves."""
    for path in sorted((folder / prefix).iterdir()):
        name = f"{prefix}{path.name}"
        if path.is_dir():
            yield from _names(folder, f"{name}/")
        elif not name.startswith((PREFIX, HIDDEN)):
            yield name
