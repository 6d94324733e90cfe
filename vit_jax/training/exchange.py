"""What devices exchange for a gradient: parameters are gathered, gradients are summed up in float32.

Left to the compiler, gradients would be summed up in the model's type, which rounds at each addition,
and after each micro-batch.
"""

import dataclasses
import functools
from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from vit_jax.checkpoint import TrainState
from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.devices.row_keys import key_of_part
from vit_jax.models.layers import Deferred
from vit_jax.optimizer.sharpness import Gradient
from vit_jax.parameters import TrainablePart, is_stacked, path_name

DATA = "data"  # The mesh's axis over which parameters are copied,
FSDP = "fsdp"  # and that over which they are split.
KERNEL = "kernel"  # Ends the name of what blocks multiply by, in the model's type.


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How the devices along some of the mesh's axes share an update; the others the compiler's.

    Attributes:
      mesh: of devices.
      axes: along which each device adds up its own gradients.
      once: gather parameters once an update and reduce their gradients at its end; else layer by
        layer, where they are used.
      specs: how parameters are split over `axes`.
      dtype: of the model's products, in which the blocks' kernels are gathered.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    once: bool
    specs: dict
    dtype: str

    def to_use(self, params: dict) -> dict:
        """The device's parts of the parameters, as a loss takes them.

        Arrays that are split are gathered: those of blocks layer by layer, where they are used, their
        kernels rounded first, as the products would do. Their gradients come back as the device's
        part of the sum over the fsdp axis.
        """
        split = FSDP in self.axes and not self.once
        return on_use(params, self.specs, self.dtype) if split else params

    def summed(self, gradient: Gradient, trainable: TrainablePart, num_keys: int = 0) -> Gradient:
        """The loss and gradients of the whole batch.

        Args:
          gradient: of one part of the batch, of as many as there are devices along `axes`.
          trainable: the part of the parameters that gradients are of.
          num_keys: split the random key into so many, and give each part of the batch its share of
            them; 0: all draw as the whole batch would.
        """
        axes, specs = self.axes, self.specs
        if not axes:
            return gradient
        kept = trainable.prune(specs)
        # With nothing left to the compiler, a program may have kernels that it cannot split.
        whole_axes = [axis for axis, size in self.mesh.shape.items() if size == 1]

        def whole(state: TrainState, frozen: dict, batch: Batch, key: jax.Array) -> tuple:
            known = specs_within(sharding.fitting_shardings(frozen, self.mesh), axes)

            def local(state: TrainState, frozen: dict, batch: Batch, data: jax.Array) -> tuple:
                key = jax.random.wrap_key_data(data)
                key = key if num_keys else key_of_part(key, jax.lax.axis_index(axes))
                if self.once:
                    gathered = jax.tree.map(gathered_by, state.params, specs)
                    state = state._replace(params=gathered)
                frozen = {name: on_use(tree, known[name]) for name, tree in frozen.items()}
                values, gradients = gradient(state, frozen, batch, key)
                # In the parameters' type: float32.
                return jax.lax.psum(values, axes), jax.tree.map(self.reduced, gradients, kept)

            key = jax.random.split(key, num_keys) if num_keys else key
            state = state._replace(opt_state=(), ema=None, objective={})  # Nothing else is needed.
            everywhere, rows = PartitionSpec(), PartitionSpec(axes)
            states = TrainState(everywhere, specs, (), None, {})
            mapped = jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(states, known, rows, rows if num_keys else everywhere),
                out_specs=(everywhere, kept),
                axis_names={*axes, *whole_axes},
                check_vma=False,
            )
            return mapped(state, frozen, batch, jax.random.key_data(key))

        return whole

    def reduced(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        """The sum of the devices' gradients of an array, of which each keeps its part."""
        dimension, axes = split_dimension(spec), self.axes
        if dimension is None:
            return jax.lax.psum(x, axes)
        if self.once:
            x = jax.lax.psum_scatter(x, FSDP, scatter_dimension=dimension, tiled=True)
        return jax.lax.psum(x, tuple(axis for axis in axes if axis != FSDP))


def specs_within(shardings: dict, axes: Collection[str]) -> dict:
    """How arrays are split over some of the mesh's axes, which rules name one by one."""
    return jax.tree.map(
        lambda one: PartitionSpec(*(axis if axis in axes else None for axis in one.spec)), shardings
    )


def split_dimension(spec: PartitionSpec) -> int | None:
    """The dimension that is split over the fsdp axis."""
    return tuple(spec).index(FSDP) if FSDP in spec else None


def gathered_by(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """The whole array, of a device's part of it."""
    dimension = split_dimension(spec)
    return x if dimension is None else gathered(dimension, x.dtype, x)


def on_use(tree: dict, specs: dict, kernel_dtype: str | None = None) -> dict:
    """A tree of a model's arrays, those that are split gathered, or to be, as `Exchange.to_use` says.

    Args:
      tree: of the device's parts.
      specs: how they are split.
      kernel_dtype: of gathered kernels of blocks; None: their own.
    """

    def gather(path: tuple, x: jax.Array, spec: PartitionSpec) -> jax.Array | Deferred:
        name, dimension = path_name(path), split_dimension(spec)
        if dimension is None:
            return x
        if not is_stacked(name):
            return gathered(dimension, x.dtype, x)
        dtype = kernel_dtype if kernel_dtype and name.endswith(KERNEL) else x.dtype
        return Deferred(x, Gather(dimension - 1, str(dtype)))

    return jax.tree_util.tree_map_with_path(gather, tree, specs)


@dataclasses.dataclass(frozen=True)
class Gather:
    """Makes a whole array of a device's part: see `gathered`."""

    dimension: int
    dtype: str

    def __call__(self, part: jax.Array) -> jax.Array:
        """The whole array."""
        return gathered(self.dimension, self.dtype, part)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gathered(dimension: int, dtype: str, part: jax.Array) -> jax.Array:
    """The whole array in a type, of a device's part along a dimension, over the fsdp axis.

    The part is rounded before it is sent. Its gradient is widened before it is summed up.
    """
    return jax.lax.all_gather(part.astype(dtype), FSDP, axis=dimension, tiled=True)


def _forward(dimension: int, dtype: str, part: jax.Array) -> tuple[jax.Array, None]:
    return gathered(dimension, dtype, part), None


def _backward(dimension: int, dtype: str, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    del dtype
    wide = gradient.astype(jnp.float32)
    return (jax.lax.psum_scatter(wide, FSDP, scatter_dimension=dimension, tiled=True),)


gathered.defvjp(_forward, _backward)
