"""A model as one serialised StableHLO program, which runs wherever JAX does, without this package.

exported = jax.export.deserialize(open("model.stablehlo", "rb").read())
logits = exported.call(images)   # [B, H, W, C] float32, normalised -> [B, K] float32
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import unflatten_dict

from vit_jax.model_file import ModelFile
from vit_jax.weights import metadata
from vit_jax.weights.architecture import abstract_parameters
from vit_jax.weights.mapping import Tensors

PLATFORMS = ("cpu", "cuda", "tpu")


def write(path: str, parameters: Tensors, options: Any, model_file: ModelFile) -> None:
    """Writes the program, its parameters inside, and a `.json` that describes its input."""
    graphdef, _ = abstract_parameters(model_file.name, options)
    arrays = unflatten_dict({name: jnp.asarray(a) for name, a in parameters.items()}, sep="/")

    def apply(image: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, arrays)(image[None])[0]

    (batch,) = jax.export.symbolic_shape("batch")
    shape = (batch, *options.image_size, options.channels)
    program = jax.jit(jax.vmap(apply))  # Models may use the batch's length, which is a symbol here.
    exported = jax.export.export(program, platforms=PLATFORMS)(
        jax.ShapeDtypeStruct(shape, jnp.float32)
    )
    metadata.write_sidecar(path, model_file)
    pathlib.Path(path).write_bytes(exported.serialize())
