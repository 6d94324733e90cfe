"""Which format a weight file has: told by its content, never by its name."""

import os
import zipfile
from collections.abc import Callable

from etils import epath

from vit_jax.console import python_command
from vit_jax.errors import CheckpointError, UserError, WeightsError
from vit_jax.model_file import FILE_NAME
from vit_jax.weights import huggingface, native, npz, tensor_file, timm
from vit_jax.weights.content import Hints, Weights

Reader = Callable[[str, Hints], Weights]

HEADER_LIMIT = 100_000_000  # bytes; the limit that the library of .safetensors sets
BUCKETS = ("gs://", "s3://")
MOST_TENSORS = 50_000  # A training state of the largest model has a tenth of it.
NEWEST_PICKLE = b"\x05"  # the second byte, a pickle's protocol
PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")
CONVERT = (
    "import sys, torch, safetensors.torch as s; d = torch.load(sys.argv[1], weights_only=True); "
    'd = d.get("state_dict", d.get("model", d)); '
    "s.save_file({k: v.contiguous() for k, v in d.items()}, sys.argv[2])"
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
    "stem.proj.weight": timm.read,
    "stem.conv.weight": timm.read,
    **{
        prefix + name: huggingface.read
        for name in huggingface.PATCH_KERNELS
        for prefix in ("", *huggingface.PREFIXES)
    },
}


def read_weights(
    path: str | os.PathLike[str],
    hints: Hints,
    *,
    checkpoint: str | int = "latest",
    ema: bool = False,
    average: int | None = None,
) -> Weights:
    """The weights at `path`, whatever their format.

    Args:
      path: a run's workdir, an export of this package, a `.npz` or `.safetensors` file, a folder
        with such a file.
      hints: what the caller knows about it.
      checkpoint, ema: of a workdir, as for `vit_jax.load_model`.
      average: of a workdir: so many of the last checkpoints are averaged; None: one is taken.

    Raises:
      WeightsError: it is none of these, damaged, not finite, or does not say enough.
      CheckpointError: a workdir has no such checkpoint.
    """
    path, is_run = os.fspath(path), is_workdir(path)
    try:
        if is_run:
            weights = native.read_run(path, checkpoint, ema, average)
        elif checkpoint != "latest" or ema or average is not None:
            raise WeightsError("it is no run's workdir, which alone has checkpoints and averages.")
        else:
            file = find_file(path)
            weights = find_reader(file)(file, hints)
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
    if "model.safetensors" in names:
        return os.path.join(path, "model.safetensors")
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
    for signature, reader in SAFETENSORS_READERS.items():
        if signature in names:
            return reader
    raise WeightsError(
        f"none of its {len(names)} tensors has a name of timm's, Hugging Face's or this package's "
        f"Vision Transformers; the first: {min(names, default='none')!r}."
    )
