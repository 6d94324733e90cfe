"""The product with a kernel: values as JAX's, gradients as those of float64, on every platform's way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models import products as module
from vit_jax.models.layers import MLP, SwiGLU
from vit_jax.models.products import kernel_product
from vit_jax.models.vit import ViTOptions

OPTIONS = ViTOptions(width=4, patch_size=2, depth=1, mlp_width=6, num_heads=1)


def arrays(width, features, dtype=jnp.float32):
    """Rows [2, 5, width], a kernel, and a gradient of their product."""
    rng = np.random.default_rng(0)
    shapes = (2, 5, width), (width, features), (2, 5, features)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def gradients(x, kernel, dy):
    """Of a Flax layer that multiplies so: the result, and the gradients of rows and kernel."""
    layer = nnx.Linear(
        *kernel.shape, use_bias=False, dtype=x.dtype, dot_general=kernel_product, rngs=nnx.Rngs(0)
    )
    graphdef, _ = nnx.split(layer)

    def apply(x, kernel):
        return nnx.merge(graphdef, nnx.State({"kernel": nnx.Param(kernel)}))(x)

    y, pull = jax.vjp(apply, x, kernel)
    return y, *pull(dy)


@pytest.mark.parametrize(("width", "features"), [(6, 3), (3, 6), (4, 4), (1, 3)])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_values_and_gradients(width, features, elsewhere, monkeypatch):
    if elsewhere:  # As on a platform without a way of its own.
        monkeypatch.setattr(
            module.lax, "platform_dependent", lambda *arrays, default, **ways: default(*arrays)
        )
    x, kernel, dy = arrays(width, features)
    rows, gradient = (np.asarray(a, np.float64).reshape(10, -1) for a in (x, dy))
    exact = [rows @ np.asarray(kernel), gradient @ np.asarray(kernel).T, rows.T @ gradient]
    for found, expected in zip(gradients(x, kernel, dy), exact, strict=True):
        np.testing.assert_allclose(found, expected.reshape(found.shape), atol=5e-6)


def test_bfloat16_stays_bfloat16():
    x, kernel, dy = arrays(6, 3, jnp.bfloat16)
    found = gradients(x, kernel, dy)
    assert {array.dtype for array in found} == {jnp.dtype(jnp.bfloat16)}
    np.testing.assert_allclose(
        np.asarray(found[2], np.float32),
        np.einsum("abi,abo->io", np.asarray(x, np.float32), np.asarray(dy, np.float32)),
        rtol=2e-2,
        atol=2e-2,
    )


def test_other_platforms_have_the_program_of_a_plain_layer():
    x, kernel, dy = arrays(6, 3)

    def program(product):
        def gradients(x, kernel, dy):
            numbers = (((2,), (0,)), ((), ()))
            return jax.vjp(lambda *factors: product(*factors, numbers), x, kernel)[1](dy)

        lowered = jax.jit(gradients).trace(x, kernel, dy).lower(lowering_platforms=("tpu",))
        return sorted(line for line in lowered.as_text().splitlines() if "dot_general" in line)

    plain, ours = program(jax.lax.dot_general), program(kernel_product)
    contractions = [
        [line.split("contracting_dims")[1] for line in lines] for lines in (plain, ours)
    ]
    assert contractions[0] == contractions[1]
    assert len(plain) == 2


@pytest.mark.parametrize(
    ("layers", "names"), [(MLP, {"dense1", "dense2"}), (SwiGLU, {"dense1", "dense2", "gate"})]
)
def test_every_product_of_an_mlp_is_such(layers, names):
    layer = layers(4, 6, OPTIONS, nnx.Rngs(0))
    found = {name for name, value in vars(layer).items() if isinstance(value, nnx.Linear)}
    assert found == names
    assert all(getattr(layer, name).dot_general is kernel_product for name in names)
