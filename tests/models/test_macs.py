"""`options.macs()` against the products counted in the traced program of every family."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr

from vit_jax.models import abstract_model

VIT = {"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 3, "num_classes": 7}
VIT |= {"image_size": (16, 24), "patch_size": (8, 4)}
CASES = [
    ("ViT-B/16", VIT),
    ("ViT-B/16", {**VIT, "pooling": "attention", "representation_size": 5, "channels": 1}),
    ("ViT-B/16", {**VIT, "pooling": "average", "positions": "relative", "num_registers": 2}),
    ("ViT-B/16", {**VIT, "mlp": "swiglu"}),
    ("ViT-B/16", {**VIT, "class_token": True, "pooling": "average", "num_classes": 0}),
    ("R50+ViT-B/16", {**VIT, "patch_size": 1, "image_size": (40, 33), "stem_depths": (2, 1)}),
    ("R+ViT-Ti/16", {**VIT, "patch_size": 2, "image_size": (40, 24)}),
    ("BiT-R50x1", {"image_size": (33, 40), "stage_depths": (2, 1, 2), "num_classes": 5}),
    ("BiT-v1-R50x1", {"image_size": (33, 40), "stage_depths": (1, 2), "width_factor": 1.5}),
    ("Axial-ViT-B/16", {**VIT, "pooling": "attention"}),
    ("AxialResNet50", {"image_size": (33, 40), "stage_depths": (1, 2), "num_classes": 5}),
    (
        "Mixer-B/16",
        {"width": 24, "depth": 3, "mlp_width": 40, "token_mlp_width": 16, "image_size": 32},
    ),
]


def count_products(jaxpr):
    """Multiply-accumulates of all matrix products and convolutions, scanned ones included."""
    total = 0
    for equation in jaxpr.eqns:
        out = equation.outvars[0].aval.shape
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            left = equation.invars[0].aval.shape
            total += math.prod(out) * math.prod(left[axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape  # [H, W, C, D]
            total += math.prod(out) * math.prod(kernel[:3])
        inner = [value for value in equation.params.values() if isinstance(value, ClosedJaxpr)]
        inner += [value for value in equation.params.values() if isinstance(value, Jaxpr)]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(count_products(getattr(sub, "jaxpr", sub)) for sub in inner)
    return total


@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)]
)
def test_macs_equal_the_products_of_the_program(name, options):
    model = abstract_model(name, **options)
    graphdef, state = nnx.split(model)
    shape = (1, *model.options.image_size, model.options.channels)
    images = jax.ShapeDtypeStruct(shape, jnp.float32)
    program = jax.make_jaxpr(lambda state, x: nnx.merge(graphdef, state)(x))(state, images)
    assert model.options.macs() == count_products(program.jaxpr)
