"""States to save, with random values, and what tests compare of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.checkpoint import TrainState
from vit_jax.config import default_config
from vit_jax.devices import sharding
from vit_jax.optimizer import build_optimizer
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.parameters import path_name

SHAPES = {"embedding/kernel": (8, 16), "blocks/kernel": (3, 16, 8), "head/bias": (5,)}
LARGE = {"embedding/kernel": (256, 1024), "head/bias": (64,)}


def mesh_of(num_devices: int = 8, **axes: int) -> Mesh:
    """The mesh of the first so many devices; axes that are not named are as by default."""
    config = default_config().mesh
    config.update(axes)
    return sharding.build_mesh(config, jax.devices()[:num_devices])


ONE, DATA, FSDP = mesh_of(1), mesh_of(8), mesh_of(8, fsdp=8)


def make_state(
    step=1, *, mesh=ONE, ema=False, optimizer="adamw", momentum_dtype="float32", shapes=SHAPES
):
    """A state with random values in every array; kernels split over the mesh's `fsdp`."""
    params = {}
    for name in shapes:
        parent, _, last = name.partition("/")
        params.setdefault(parent, {})[last] = jnp.zeros(shapes[name])
    config = default_config().optimizer
    config.update({"name": optimizer, "momentum_dtype": momentum_dtype, "weight_decay": 0.1})
    groups = parameter_groups(config, params)
    opt_state = build_optimizer(config, lambda count: 1e-3, groups).init(params)
    generator = np.random.default_rng(step)

    def fill(path, leaf):
        value = jnp.asarray(10 * generator.normal(size=leaf.shape), leaf.dtype)
        split = path_name(path).endswith("kernel") and mesh.shape["fsdp"] > 1
        spec = PartitionSpec(*[None] * (leaf.ndim - 1), "fsdp") if split else PartitionSpec()
        return jax.device_put(value, NamedSharding(mesh, spec))

    state = TrainState(jnp.int32(step), params, opt_state, params if ema else None)
    state = jax.tree_util.tree_map_with_path(fill, state)
    counter = jax.device_put(jnp.int32(step), NamedSharding(mesh, PartitionSpec()))
    return state._replace(step=counter)


def abstract(state):
    """The state's shapes, types and shardings."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )


def assert_equal(found, expected):
    """Equal to the bit, in structure, type and value."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=path_name(path))


ITEMS = ("params", "optimizer", "ema")  # Of a run whose objective keeps no state.


def everything_in(directory):
    """Names, sizes and times of all files and folders."""
    return {
        path.relative_to(directory): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
    }
