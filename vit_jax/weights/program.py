"""A model as one serialised StableHLO program, which runs wherever JAX does, without this package.

exported = jax.export.deserialize(open("model.stablehlo", "rb").read())
logits = exported.call(images)   # [B, H, W, C] float32, normalised -> [B, K] float32
"""

import pathlib

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import unflatten_dict

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile
from vit_jax.models.base import ModelOptions
from vit_jax.weights import metadata
from vit_jax.weights.architecture import abstract_parameters
from vit_jax.weights.files import Files
from vit_jax.weights.mapping import Tensors

PLATFORMS = ("cpu", "cuda", "tpu")
MOST_BYTES = 2**31 - 2**24  # of parameters: 2 GiB, the format's limit, less some room for the rest


def files(path: str, parameters: Tensors, options: ModelOptions, model_file: ModelFile) -> Files:
    """The program, its parameters inside, and a `.json` that describes its input.

    Raises WeightsError if the parameters are too many.
    """
    size = sum(array.nbytes for array in parameters.values())
    if size > MOST_BYTES:
        raise WeightsError(
            f"its parameters take {size / 2**30:.1f} GiB, and a program can hold less than 2: "
            "write format='vit_jax'."
        )
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
    serialized = exported.serialize()
    return {
        pathlib.Path(path): lambda target: target.write_bytes(serialized),
        **metadata.write_sidecar(path, model_file),
    }
