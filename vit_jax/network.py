"""A model as a pure function: from parameters and pixels to logits, in training and in use."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.model_file import Preprocessing
from vit_jax.models.base import BATCH_NORM, PRE_LOGITS, ImageClassifier, ModelOptions
from vit_jax.models.norms import BatchNorm
from vit_jax.parameters import HEAD_NORM, OBJECTIVE

FEATURES, SQUARES = "features", "features_squared"  # Of the head's input, in an objective's values.


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

    def statistics(self, outputs: dict[str, Any]) -> dict[str, jax.Array]:
        """The values of each example whose means over the batch `follow` needs; {} for most models.

        The loss of an objective returns them besides its own.
        """
        if not self._has_statistics:
            return {}
        features = jax.lax.stop_gradient(outputs[PRE_LOGITS])
        return {FEATURES: features, SQUARES: features**2}

    def follow(self, params: dict, means: dict) -> dict:
        """The parameters after an update, with the running statistics that no gradient moves.

        Raises ConfigError if the objective's loss has not returned what `statistics` gives.
        """
        if not self._has_statistics:
            return params
        if FEATURES not in means:
            raise ConfigError(
                f"model.head_norm={self.options.head_norm!r} follows the head's input, which this "
                "objective does not give: its loss must return network.statistics(outputs) too."
            )
        moved = BatchNorm.follow(params[HEAD_NORM], means[FEATURES], means[SQUARES])
        return {**params, HEAD_NORM: moved}

    @property
    def _has_statistics(self) -> bool:
        return self.options.head_norm == BATCH_NORM and self.options.num_classes > 0

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
