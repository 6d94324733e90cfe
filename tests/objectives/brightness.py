"""An objective in one file: its own parameters tell an image's weighted brightness from features."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp

from vit_jax.evaluators import EVALUATORS
from vit_jax.evaluators.base import Evaluator, Results
from vit_jax.kinds import Amount
from vit_jax.objectives.base import Objective


class Brightness(Objective):
    EVALUATORS = "brightness"
    BEST_METRIC = "-brightness/error"

    @dataclasses.dataclass(frozen=True)
    class Options:
        scale: Amount = 1.0  # Of the loss.

    def init(self, key):
        return {"kernel": 0.1 * jax.random.normal(key, (self.network.options.width,))}

    def frozen(self):
        size = self.network.options.image_size
        return {"weights": jnp.linspace(0.0, 2.0, size[0] * size[1]).reshape(*size, 1)}

    def loss(self, params, frozen, batch, key):
        features = self.network.outputs(params, batch["image"], key)["pre_logits"]
        wanted = jnp.mean(batch["image"] * frozen["weights"] / 255, axis=(1, 2, 3))
        error = jnp.abs(features @ params["objective"]["kernel"] - wanted)
        return self.options.scale * error**2, {"error": error}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrightnessError(Evaluator):
    """The mean error over a split."""

    NAME = "brightness"
    NEEDS_OBJECTIVE = True

    def metrics(self, setting):
        return ("error",)

    def bind(self, setting):
        split, loss = setting.data.open(self.source, self.split), jax.jit(setting.objective.loss)

        def measure(params, frozen):
            with contextlib.closing(split.batches()) as batches:
                pairs = [(loss(params, frozen, b, None)[1]["error"], b["mask"]) for b in batches]
            total = sum(jnp.sum(error, where=mask).item() for error, mask in pairs)
            return Results({"error": total / len(split)})

        return measure


EVALUATORS["brightness"] = BrightnessError
