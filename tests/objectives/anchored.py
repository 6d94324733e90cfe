"""An objective with a state of its own: what it moved to last, and the classes that it has seen."""

import jax
import jax.numpy as jnp

from vit_jax.objectives.base import Objective

WIDTH = 3


class Anchored(Objective):
    """Minimises kernel · anchor · label; `update` makes the new kernel the next anchor."""

    def init(self, key):
        return {"kernel": jax.random.normal(key, (WIDTH,))}

    def state(self, params):
        return {"anchor": params["objective"]["kernel"], "seen": jnp.zeros(10)}

    def loss(self, params, frozen, batch, key):
        del key
        label = batch["label"].astype(jnp.float32)
        losses = label * (params["objective"]["kernel"] @ frozen["anchor"])
        return losses, {"level": label, "classes": jax.nn.one_hot(batch["label"], 10)}

    def update(self, state, params, auxiliary):
        seen = state["seen"] + auxiliary["classes"]
        return {"anchor": params["objective"]["kernel"], "seen": seen}
