"""Weights by name on the Hub: which of a repository's files make up a model, and where they are."""

import functools
import os
import posixpath
from collections.abc import Sequence

from vit_jax import hub
from vit_jax.errors import WeightsError

SAFETENSORS, NPZ, JSON = ".safetensors", ".npz", ".json"
USUAL = "model.safetensors"  # of timm and transformers, also beside files of other precision
INDEX = "model.safetensors.index.json"  # of a model in several files
OF_TEXT = ("token", "vocab")  # In the names of JSON files that describe a tokenizer.


def local_path(path: str, *, cached_only: bool = False) -> str:
    """The path itself; of a name on the Hub, that of its weights, fetched if they are not here.

    Args:
      path: of a file or folder, or `hf:USER/NAME[/PATH][@REVISION]`.
      cached_only: ask nothing of the network.

    Raises:
      HubError: the files cannot be fetched, or `cached_only` and they are not here.
      WeightsError: the repository holds no weights that can be read, or several.
    """
    if not hub.is_reference(path):
        return path
    reference = hub.parse(path)
    choose = functools.partial(choose_files, reference=reference)
    snapshot = hub.fetch(
        reference.repository, hub.MODEL, reference.revision, choose, cached_only=cached_only
    )
    *_, weights = snapshot.names
    file = os.path.join(snapshot.folder, *weights.split("/"))
    is_part = any(name.endswith(INDEX) for name in snapshot.names)
    return os.path.dirname(file) if is_part else file


def choose_files(names: Sequence[str], reference: hub.Reference) -> list[str]:
    """The files of the model that a reference names: the JSON beside the weights, then these.

    Raises WeightsError if there is none, if it is a pickle, or if there are several.
    """
    folder = reference.path
    if reference.path in names:
        weights, folder = [reference.path], posixpath.dirname(reference.path)
    beside = {posixpath.basename(name): name for name in names if posixpath.dirname(name) == folder}
    if reference.path not in names:
        weights = [beside[name] for name in choose_weights(list(beside), str(reference))]
    elif not reference.path.endswith((SAFETENSORS, NPZ)):
        raise WeightsError(f"{reference}: it is neither a {SAFETENSORS} nor an {NPZ} file.")
    described = [
        path
        for name, path in sorted(beside.items())
        if name.endswith(JSON) and not any(word in name for word in OF_TEXT)
    ]
    if len(weights) == 1:  # An index would be another model's, or the same one's in parts.
        described = [path for path in described if not path.endswith(INDEX)]
    return [*described, *weights]


def choose_weights(names: Sequence[str], shown: str) -> list[str]:
    """The names in one folder that hold a model's tensors; raises as `choose_files`."""
    if USUAL in names:
        return [USUAL]
    found = sorted(name for name in names if name.endswith(SAFETENSORS))
    if INDEX in names:
        return [name for name in found if name.startswith("model-")]
    found = found or sorted(name for name in names if name.endswith(NPZ))
    if len(found) == 1:
        return found
    if found:
        raise WeightsError(
            f"{shown} holds several weight files: add one of them, as in "
            f"{shown.partition('@')[0]}/{found[0]}: {', '.join(found)}."
        )
    if pickles := [name for name in names if name.lower().endswith(hub.PICKLES)]:
        raise WeightsError(
            f"{shown} has its weights in {pickles[0]} alone, a Python pickle, which can run any "
            "program when it is read: it is not fetched. Its owner can add a .safetensors file."
        )
    raise WeightsError(
        f"{shown} holds no {SAFETENSORS} or {NPZ} file. It holds: {', '.join(names[:10]) or 'nothing'}."
    )
