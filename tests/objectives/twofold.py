"""An objective with all that a mesh can split: a second model of its own, and a teacher's state."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models import registry
from vit_jax.objectives import averaged_teacher
from vit_jax.objectives.base import Objective


class Twofold(Objective):
    """Two models' features add up to the averaged first one's, and to the label."""

    def init(self, key):
        shapes = nnx.eval_shape(lambda: registry.build_model("ViT-Ti/2", key, self.network.options))
        params = nnx.to_pure_dict(nnx.split(shapes)[1])
        return jax.tree.map(lambda leaf: jnp.asarray(fill(leaf.shape)), params)

    def state(self, params):
        return averaged_teacher.begin(params)

    def loss(self, params, frozen, batch, key):
        def features(params):
            return self.network.outputs(params, batch["image"], key)["pre_logits"]

        wanted = features(frozen["teacher"]) + batch["label"][:, None]
        losses = jnp.mean((features(params) + features(params["objective"]) - wanted) ** 2, axis=-1)
        return losses, {}

    def update(self, state, params, auxiliary):
        return averaged_teacher.follow(state, params, 0.9)


def fill(shape):
    """Numbers as if drawn, without a program that draws them."""
    return np.random.default_rng(0).normal(0, 0.2, shape).astype(np.float32)
