"""Weight files with the descriptions beside them, and checkpoints, as this package reads them."""

import contextlib
import pathlib
import random
import shutil

import jax
import numpy as np

import vit_jax
from tests.campaigns.fuzz.mutations import flip_bits, mutate, mutate_file, truncate
from tests.published import GOLDEN, random_model
from tests.states import abstract, make_state
from tests.workdirs import NAME, TINY
from vit_jax.checkpoint import Checkpoints, restore_params
from vit_jax.weights.content import Hints
from vit_jax.weights.formats import read_weights
from vit_jax.weights.loading import build_model, check_complete

HINTS = {"num_heads": 2}
BUILT = 0.1  # Share of the files that can be read of which a model is made, which takes longer.


def _copy(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The folder with a copy of what is at `path`, a file or a folder."""
    if path.is_dir():
        shutil.copytree(path, folder, dirs_exist_ok=True)
        return folder
    return pathlib.Path(shutil.copy(path, folder))


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


class WeightFiles:
    """`load_model`: the tensors of the file, or an error of one sentence.

    Zip archives and this package's exports have checksums: their tensors are those that were
    written, or it is an error.
    """

    max_growth_mib = 512

    def __init__(self, folder: pathlib.Path):
        """Writes exports of every format to `folder`."""
        model = random_model(NAME, num_classes=3, **TINY)
        for file_format in ("vit_jax", "timm", "huggingface"):
            vit_jax.save_model(model, folder / file_format, file_format)
        vit_jax.save_model(model, folder / "model.npz", "npz")
        published = ("vit_token.npz", "timm_registers_layerscale.safetensors", "hf_gelu")
        self.seeds = [*sorted(folder.iterdir()), *(GOLDEN / name for name in published)]

    def trial(self, rng: random.Random, folder: pathlib.Path) -> str:
        seed = rng.choice(self.seeds)
        copy = _copy(seed, folder)
        original = read_weights(copy, Hints(HINTS)).parameters
        file = rng.choice(_files(folder))
        kind = mutate_file(file, rng)
        weights = read_weights(copy, Hints(HINTS))
        check_complete(weights)
        if rng.random() < BUILT:
            build_model(weights, {})
        is_same = weights.parameters.keys() == original.keys() and all(
            np.array_equal(weights.parameters[name], original[name]) for name in original
        )
        checked = file.suffix == ".npz" or file.name == "params.safetensors"
        if not is_same and checked and kind in (flip_bits, truncate):
            raise AssertionError(f"{seed.name}/{file.name} ({kind.__name__}): other numbers")
        return "same" if is_same else "other"


class CheckpointFiles:
    """Resuming from a checkpoint with flipped bits or cut short: its state, or an error."""

    max_growth_mib = 512

    def __init__(self, folder: pathlib.Path):
        """Writes a run's checkpoint 2, after which an older one stays, to `folder`."""
        self.folder, self.state = folder, make_state(2, ema=True)
        with contextlib.closing(Checkpoints(folder, keep=2)) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, make_state(step, ema=True), {})

    def trial(self, rng: random.Random, folder: pathlib.Path) -> str:
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        file = rng.choice(_files(folder / "checkpoints" / "2"))
        content = file.read_bytes()
        kind = rng.choice((flip_bits, truncate, None)) if content else None
        changed = kind(content, rng) if kind else mutate(content, rng)[0]
        file.write_bytes(changed)
        if rng.random() < 0.3:
            found, expected = restore_params(folder, "latest"), self.state.params
        else:
            with contextlib.closing(Checkpoints(folder, keep=2)) as checkpoints:
                found = checkpoints.restore(checkpoints.latest_step, abstract(self.state))
            expected = self.state
        pairs = jax.tree.map(np.array_equal, found, expected)
        if not all(jax.tree.leaves(pairs)):
            raise AssertionError(f"{file.relative_to(folder)}: another state, without a word")
        return "same"
