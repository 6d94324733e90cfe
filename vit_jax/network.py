"""A model as a pure function: from parameters and pixels to logits, in training and in use."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.devices import sharding
from vit_jax.model_file import Preprocessing
from vit_jax.models.base import ImageClassifier, ModelOptions
from vit_jax.parameters import OBJECTIVE


@dataclasses.dataclass(frozen=True)
class Network:
    """A model without its parameters, on a mesh. Training, evaluation and prediction share it.

    Attributes:
      structure: of the model.
      options: of the model, complete.
      preprocessing: the mean and deviation of the pixels that it expects.
      mesh: of devices; activations are split over it as the batch is.
    """

    structure: nnx.GraphDef
    options: ModelOptions
    preprocessing: Preprocessing
    mesh: Mesh

    def __call__(self, params: dict, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Pixels 0 … 255 [B, H, W, C] -> logits [B, K] float32; a random key: training mode."""
        model = self.bind(params)
        return model(self.normalize(images), key=key, constrain=self.constrain)

    def outputs(
        self,
        params: dict,
        images: jax.Array,
        key: jax.Array | None = None,
        capture: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Logits and features by name; see `ImageClassifier.outputs`."""
        model, normalized = self.bind(params), self.normalize(images)
        return model.outputs(normalized, key=key, constrain=self.constrain, capture=capture)

    def bind(self, params: dict) -> ImageClassifier:
        """The model with its parameters, for its single stages; an objective's own are left out.

        Call stages, and what is computed from them, `with network.options.in_precision()`; the loss
        of an objective is.
        """
        own = {name: value for name, value in params.items() if name != OBJECTIVE}
        return nnx.merge(self.structure, own)

    def normalize(self, images: jax.Array) -> jax.Array:
        """Pixels 0 … 255 [B, H, W, C] as the model expects them, float32."""
        return normalize(images, self.preprocessing)

    def constrain(self, activations: jax.Array) -> jax.Array:
        """Pins activations [B, ...] to the batch's sharding."""
        rows = sharding.batch_sharding(self.mesh)
        return sharding.constrain(activations, rows)


def normalize(images: jax.Array | np.ndarray, preprocessing: Preprocessing) -> jax.Array:
    """Pixels 0 … 255 [B, H, W, C] as the model expects them, float32."""
    mean, std = (np.asarray(x, np.float32) for x in (preprocessing.mean, preprocessing.std))
    return (jnp.asarray(images, jnp.float32) / 255 - mean) / std
