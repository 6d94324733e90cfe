"""A picture of the first batch as the model learns from it: augmented, mixed, with its labels."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.dataset import Batch
from vit_jax.data.images.sheet import as_pixels, draw
from vit_jax.devices import sharding
from vit_jax.objectives.base import Objective

NUM_IMAGES = 36

Preview = Callable[[Batch, int], np.ndarray]  # (batch, step) -> uint8 [H, W, 3]


def make_preview(objective: Objective, seed: int, mesh: Mesh) -> Preview:
    """The function (batch, step) -> the picture of the batch that makes update `step`."""

    @functools.partial(jax.jit, static_argnums=1, out_shardings=sharding.replicated(mesh))
    def first_rows(batch: Batch, step: int) -> tuple[jax.Array, jax.Array]:
        prepared = objective.prepare(batch, seed, step - 1)
        return objective.show(jax.tree.map(lambda x: x[:NUM_IMAGES], prepared))

    def preview(batch: Batch, step: int) -> np.ndarray:
        images, values = jax.device_get(first_rows(batch, step))
        return draw(as_pixels(images), objective.captions(values))

    return preview
