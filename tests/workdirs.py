"""A run's workdir, written as the trainer writes it."""

import dataclasses

import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from tests.published import parameters, random_model
from vit_jax.checkpoint import Checkpoints, TrainState
from vit_jax.model_file import ModelFile, Preprocessing, write_model_file

NAME = "ViT-Ti/8"
TINY = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2, "image_size": 16}
CLASSES = ("cat", "dog", "ähre")
PREPROCESSING = Preprocessing(mean=(0.4,), std=(0.2,), crop="center", resize=20)


def write_workdir(directory, accuracies=(0.1, 0.3, 0.2), ema=True):
    """Checkpoints 1, 2, ... whose parameters are the model's times 1, 2, ...; EMA: ten times."""
    model = random_model(NAME, num_classes=len(CLASSES), **TINY)
    flat = parameters(model)

    def times(factor):
        return unflatten_dict({name: array * factor for name, array in flat.items()}, sep="/")

    options = dataclasses.asdict(model.options)
    write_model_file(directory, ModelFile(NAME, options, PREPROCESSING, CLASSES))
    checkpoints = Checkpoints(directory, keep=len(accuracies), best_metric="eval/accuracy")
    for step, accuracy in enumerate(accuracies, 1):
        state = TrainState(
            jnp.int32(step),
            times(jnp.float32(step)),
            {"count": jnp.int32(step)},
            times(jnp.float32(10 * step)) if ema else None,
        )
        checkpoints.save(step, state, {"eval/accuracy": accuracy})
    checkpoints.close()
    return flat
