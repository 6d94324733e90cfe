"""Which format a weight file has: told by its content, never by its name."""

import dataclasses
import functools
import os
import pathlib
import zipfile
from collections.abc import Callable

from etils import epath

from vit_jax import hub
from vit_jax.console import python_command
from vit_jax.errors import CheckpointError, UserError, WeightsError
from vit_jax.model_file import FILE_NAME
from vit_jax.weights import (
    by_name,
    huggingface,
    metadata,
    native,
    npz,
    state_dict,
    tensor_file,
    timm,
)
from vit_jax.weights.content import Hints, Weights

Reader = Callable[..., Weights]  # (path, hints), and of .safetensors files the names' prefix

HEADER_LIMIT = 100_000_000  # bytes; the limit that the library of .safetensors sets
BUCKETS = ("gs://", "s3://")
MOST_TENSORS = 50_000  # A training state of the largest model has a tenth of it.
NEWEST_PICKLE = b"\x05"  # the second byte, a pickle's protocol
PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")
# Nested dictionaries (of DDP, Lightning, DINO, ...) become dotted names, which reading understands.
CONVERT = (
    "import sys, torch, safetensors.torch as s; "
    'n = lambda d, p: {k: v for a, b in d.items() if "optimizer" not in str(a) for k, v in '
    '(n(b, f"{p}{a}.") if isinstance(b, dict) else {f"{p}{a}": b}).items()}; '
    'd = n(torch.load(sys.argv[1], map_location="cpu", weights_only=True), ""); '
    "s.save_file({k: v.detach().clone().contiguous() for k, v in d.items() "
    "if isinstance(v, torch.Tensor)}, sys.argv[2])"
)


def pickle_message(path: str) -> str:
    """Why a pickle is refused, and the line to convert it with, safe to paste into a shell."""
    command = python_command("-c", CONVERT, path, f"{path}.safetensors")
    return (
        "it holds Python's pickle, which can run any program when it is read. Convert it, with torch "
        f"installed: {command}"
    )


# The first bytes of files that are often taken for weights.
SIGNATURES = {
    b"\xff\xd8": "a JPEG picture",
    b"\x89PNG": "a PNG picture",
    b"GIF8": "a GIF picture",
    b"RIFF": "a WebP picture",
    b"BM": "a BMP picture",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip archive",
}
# A tensor that only the files of one format have -> how to read them.
SAFETENSORS_READERS: dict[str, Reader] = {
    "embedding/kernel": native.read_export,
    "trunk/conv_root/kernel": native.read_export,
    "patch_embed.proj.weight": timm.read,
    **{
        library.kernel: functools.partial(state_dict.read, library=library)
        for library in (state_dict.CLIP, state_dict.TORCHVISION)
    },
    "stem.proj.weight": timm.read,
    "stem.conv.weight": timm.read,
    **{
        prefix + name: huggingface.read
        for name in huggingface.PATCH_KERNELS
        for prefix in ("", *huggingface.PREFIXES)
    },
}


# What wrappers and frameworks put before names: DDP, torch.compile, Lightning, DINO, CLIP, timm.
AVERAGES = ("ema", "model_ema", "ema_model", "module_ema", "ema_state_dict")
WRAPPERS = frozenset(
    (
        *("module", "model", "_orig_mod", "backbone", "encoder", "student", "teacher", "visual"),
        *("trunk", "state_dict", "net", "network", "vision_encoder", "visual_encoder"),
        *AVERAGES,
    )
)


def read_weights(
    path: str | os.PathLike[str],
    hints: Hints,
    *,
    checkpoint: str | int = "latest",
    ema: bool = False,
    average: int | None = None,
    cached_only: bool = False,
) -> Weights:
    """The weights at `path`, whatever their format.

    Args:
      path: a run's workdir, an export of this package, a `.npz` or `.safetensors` file, a folder
        with such a file, a name on the Hub.
      hints: what the caller knows about it.
      checkpoint, ema: of a workdir, as for `vit_jax.load_model`.
      average: of a workdir: so many of the last checkpoints are averaged; None: one is taken.
      cached_only: of a name on the Hub: ask nothing of the network.

    Raises:
      WeightsError: it is none of these, damaged, not finite, or does not say enough.
      CheckpointError: a workdir has no such checkpoint.
      HubError: it cannot be fetched.
    """
    path, is_run = os.fspath(path), is_workdir(path)
    local = by_name.local_path(path, cached_only=cached_only)
    try:
        if is_run:
            weights = native.read_run(path, checkpoint, ema, average)
        elif checkpoint != "latest" or ema or average is not None:
            raise WeightsError("it is no run's workdir, which alone has checkpoints and averages.")
        else:
            file = find_file(local)
            weights = find_reader(file)(file, hints)
        if hub.is_reference(path):
            weights = dataclasses.replace(weights, path=path)
        weights.check_shapes()
        weights.check_finite()
        return weights
    except UserError as error:
        kind = CheckpointError if isinstance(error, CheckpointError) else WeightsError
        raise kind(f"{path}: {error}") from error
    except OSError as error:
        raise WeightsError(f"{path}: it cannot be read: {error}.") from error


def is_workdir(path: str | os.PathLike[str]) -> bool:
    """Whether a run keeps its checkpoints there, on this machine or in a bucket."""
    path = os.fspath(path)
    if hub.is_reference(path):
        return False
    if "://" in path and not path.startswith(BUCKETS):
        raise WeightsError(f"{path}: it is not on this machine: download it first.")
    try:
        return (epath.Path(path) / "checkpoints").exists()
    except (OSError, ImportError) as error:  # A bucket may take a package that is not there.
        raise WeightsError(f"{path}: it cannot be read: {error}.") from error


def find_file(path: str) -> str:
    """The file that holds the tensors: `path` itself, or the one in the folder `path`."""
    if not os.path.exists(path):
        advice = ": of a bucket only workdirs are read, copy it here" if "://" in path else ""
        raise WeightsError(f"it does not exist{advice}.")
    if not os.path.isdir(path):
        return path
    names = sorted(os.listdir(path))
    for name in ("model.safetensors", "model" + tensor_file.INDEX):
        if name in names:
            return os.path.join(path, name)
    for suffix in (".safetensors", ".npz", *PICKLE_SUFFIXES):
        found = [name for name in names if name.endswith(suffix)]
        if len(found) > 1:
            raise WeightsError(f"it holds several weight files, name one: {', '.join(found)}.")
        if found:
            return os.path.join(path, found[0])
    raise WeightsError(
        f"it is no run's workdir ({FILE_NAME}, checkpoints/), and holds no .safetensors or .npz "
        f"file. It holds: {', '.join(names[:10]) or 'nothing'}."
    )


def find_reader(path: str) -> Reader:
    """The function that reads a file, told by its first bytes and its tensors' names."""
    if not os.path.isfile(path):
        raise WeightsError("it is no file.")
    if path.endswith(tensor_file.INDEX):
        return safetensors_reader(path)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(16)
    if size == 0:
        raise WeightsError("it is empty.")
    # First of all: the header's length, with which the file starts, may look like anything.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < HEADER_LIMIT:
        return safetensors_reader(path)
    if head.startswith(b"PK"):
        return zip_reader(path)
    if head[:1] == b"\x80" and head[1:2] <= NEWEST_PICKLE:
        raise WeightsError(pickle_message(path))
    kinds = [kind for signature, kind in SIGNATURES.items() if head.startswith(signature)]
    kind = kinds[0] if kinds else "a text file" if head.isascii() else "something else"
    raise WeightsError(f"it is neither a .npz nor a .safetensors file, but {kind}.")


def zip_reader(path: str) -> Reader:
    """The reader of a zip archive: numpy's are `.npz` files, PyTorch's hold a pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise WeightsError(f"truncated or damaged .npz file: {error}.") from None
    if not names:
        raise WeightsError("it is an empty archive.")
    check_count(names)
    if any(name.endswith("data.pkl") for name in names):
        raise WeightsError(pickle_message(path))
    if others := [name for name in names if not name.endswith(".npy")]:
        raise WeightsError(f"it is a zip archive, but no .npz file: it holds {others[0]!r}.")
    return npz.read


def check_count(names: list[str]) -> None:
    """Raises WeightsError for more tensors than any model has, which would take hours to sort."""
    if len(names) > MOST_TENSORS:
        raise WeightsError(f"it holds {len(names):,} tensors: these are no model's weights.")


def safetensors_reader(path: str) -> Reader:
    """The reader of a `.safetensors` file, by the tensors that tell the formats apart."""
    names = tensor_file.read_names(path)
    check_count(names)
    found = {
        prefix: reader
        for signature, reader in SAFETENSORS_READERS.items()
        for prefix in prefixes_of(signature, names)
    }
    if not found:
        raise WeightsError(unknown_message(path, names))
    prefix = min(found, key=preference)
    reader = found[prefix]
    return reader if not prefix else lambda path, hints: read_inside(reader, path, hints, prefix)


def prefixes_of(signature: str, names: list[str]) -> list[str]:
    """What precedes the signature in the names that end in it, if wrappers are called so."""
    prefixes = [name.removesuffix(signature) for name in names if name.endswith(signature)]
    return [
        prefix
        for prefix in prefixes
        if prefix == ""
        or (prefix.endswith(".") and all(part in WRAPPERS for part in prefix[:-1].split(".")))
    ]


def preference(prefix: str) -> tuple[bool, bool, int]:
    """The order in which prefixes are taken: averages of a student's weights before its own."""
    parts = prefix.split(".")
    return "student" in parts, not {"teacher", *AVERAGES} & set(parts) and prefix != "", len(parts)


def read_inside(reader: Reader, path: str, hints: Hints, prefix: str) -> Weights:
    """The weights behind a prefix, with a remark that says so."""
    weights = reader(path, hints, prefix)
    others = [name for name in tensor_file.read_names(path) if not name.startswith(prefix)]
    remark = f"the names begin with {prefix!r}"
    if others:
        remark += f"; {len(others)} others are left aside, the first: {others[0]!r}"
    return dataclasses.replace(
        weights,
        remarks=(*weights.remarks, remark),
        file_names={ours: prefix + theirs for ours, theirs in weights.file_names.items()},
    )


def unknown_message(path: str, names: list[str]) -> str:
    """Why a file of unknown names is refused: by what the `config.json` beside it says it is."""
    try:
        config = metadata.read_json(pathlib.Path(path).with_name("config.json"))
    except WeightsError:
        config = {}
    for key in ("architecture", "model_type"):
        if key in config:
            return (
                f"config.json says {key}={config[key]!r}, a model that this package has not: its "
                "tensors have other names than those of its Vision Transformers."
            )
    return (
        f"none of its {len(names)} tensors has a name of timm's, Hugging Face's or this package's "
        f"Vision Transformers; the first: {min(names, default='none')!r}."
    )
