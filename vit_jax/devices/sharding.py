"""The device mesh, and where each array lies on it.

Axes: `data` splits the batch; `fsdp` splits the batch and the parameters; `tensor` splits attention
heads and MLP columns. Every parameter's sharding follows from its path and shape, by the rules below;
`describe` prints them. The models know nothing of this.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.parameters import is_stacked, path_name
from vit_jax.tables import format_table

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
MIN_FSDP_ELEMENTS = 64 * 1024  # Smaller arrays are copied to every device: splitting gains nothing.

# Parameter path -> the dimension that the tensor axis splits (after Megatron-LM, 1909.08053:
# heads and MLP columns on the way in, rows on the way out).
TENSOR_RULES = {
    r"blocks/attention/(query|key|value)/kernel": 2,  # [layer, width, HEADS, head width]
    r"blocks/attention/(query|key|value)/bias": 1,  # [layer, HEADS, head width]
    r"blocks/attention/out/kernel": 1,  # [layer, HEADS, head width, width]
    r"blocks/mlp/dense1/kernel": 2,  # [layer, width, COLUMNS]
    r"blocks/mlp/dense1/bias": 1,  # [layer, COLUMNS]
    r"blocks/mlp/dense2/kernel": 1,  # [layer, ROWS, width]
}


def build_mesh(config: ConfigDict, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh of `config.mesh` over `devices` (default: all of them).

    Neighbours along `tensor` and `fsdp` have the fastest links between them; of several slices or
    hosts only the data axis crosses the slower network.

    Raises ConfigError if the axes do not multiply to the devices, or do not fit into the slices.
    """
    devices = jax.devices() if devices is None else devices
    slices, are_processes = find_slices(config.slices, devices)
    shape = _axis_sizes(config, len(devices))
    if shape[0] % slices:
        raise ConfigError(
            f"config.mesh: data={shape[0]} is not divisible by the {slices} slices, which only the "
            f"data axis may cross: fsdp x tensor must divide the {len(devices) // slices} devices "
            "of one."
        )
    inner = (shape[0] // slices, *shape[1:])
    if slices == 1:
        grid = mesh_utils.create_device_mesh(inner, devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_hybrid_device_mesh(
            inner,
            (slices, 1, 1),
            devices,
            process_is_granule=are_processes,
            allow_split_physical_axes=True,
        )
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _axis_sizes(config: ConfigDict, num_devices: int) -> tuple[int, ...]:
    """The sizes of `AXES`, with the one that is -1 filled in."""
    sizes = {axis: config[axis] for axis in AXES}
    open_axes = [axis for axis in AXES if sizes[axis] == -1]
    if len(open_axes) > 1:
        raise ConfigError(
            f"config.mesh: {' and '.join(open_axes)} are both -1, and only one axis can take the "
            "rest of the devices: set the others to a number."
        )
    for axis in open_axes:
        others = math.prod(size for size in sizes.values() if size != -1)
        sizes[axis] = num_devices // max(others, 1)
    if math.prod(sizes.values()) != num_devices:
        axes = " x ".join(f"{axis}={config[axis]}" for axis in AXES)
        raise ConfigError(
            f"config.mesh: {axes} does not multiply to the {num_devices} devices: the axes must "
            "divide them, and one that is -1 takes the rest."
        )
    return tuple(sizes.values())


def find_slices(wanted: int, devices: Sequence[jax.Device]) -> tuple[int, bool]:
    """How many groups with fast links inside the devices form, and whether these are processes.

    TPUs say to which slice they belong. Elsewhere `wanted`, `config.mesh.slices`, makes a group of
    each process's devices, if it is more than 1.

    Raises ConfigError if there are not `wanted` groups, or if they are not equally large.
    """
    are_processes = len({getattr(device, "slice_index", 0) for device in devices}) == 1
    if wanted <= 1 and (are_processes or devices[0].platform != "tpu"):
        return 1, are_processes
    kind, attribute = ("processes", "process_index") if are_processes else ("slices", "slice_index")
    counts = Counter(getattr(device, attribute) for device in devices)
    if wanted not in (0, len(counts)):
        raise ConfigError(
            f"config.mesh.slices={wanted}: the {len(devices)} devices form {len(counts)} {kind}: "
            "set it to that, or leave it out."
        )
    if len(set(counts.values())) > 1:
        sizes = ", ".join(str(count) for _, count in sorted(counts.items()))
        raise ConfigError(
            f"config.mesh: the {kind} have {sizes} devices, and a mesh needs equally many of each."
        )
    return len(counts), are_processes


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """The batch, after `leading` axes, over all devices but those that share it along `tensor`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, BATCH_AXES))


def constrain(x: jax.Array, where: NamedSharding) -> jax.Array:
    """Pins an array to its sharding; under `jax.shard_map`, to what the mapped axes leave of it."""
    context = jax.sharding.get_abstract_mesh()
    mapped = () if context.empty else context.manual_axes
    if not mapped:
        return jax.lax.with_sharding_constraint(x, where)
    groups = (axes if isinstance(axes, tuple) else (axes,) for axes in where.spec)
    left = (tuple(axis for axis in group if axis and axis not in mapped) for group in groups)
    spec = PartitionSpec(*(group or None for group in left))
    return jax.lax.with_sharding_constraint(x, NamedSharding(context, spec))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch(batch_size: int, accumulation_steps: int, mesh: Mesh, shares: int = 1) -> None:
    """Raises ConfigError unless devices, micro-batches and shares of the batch divide it."""
    apart = shares % mesh.shape["data"] == 0  # Devices along data have shares of their own.
    axes = BATCH_AXES[1:] if apart else BATCH_AXES
    devices = math.prod(mesh.shape[axis] for axis in axes)
    unit = devices * accumulation_steps * shares
    if batch_size % unit:
        lower = batch_size // unit * unit
        nearest = f"{lower} or {lower + unit}" if lower else f"{unit}"
        of_shares = f" x {shares} (config.optimizer.sharpness.shares)" if shares > 1 else ""
        raise ConfigError(
            f"config.batch_size={batch_size} is not divisible by {devices} (devices along "
            f"{' x '.join(axes)}) x {accumulation_steps} (config.optimizer.accumulation_steps)"
            f"{of_shares} = {unit}; the nearest that is: {nearest}."
        )


def partition_spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The sharding of one parameter, by its path and shape.

    The tensor axis splits what `TENSOR_RULES` names. The fsdp axis splits the largest dimension
    left that it divides, never a block parameter's layer axis.
    """
    spec: list[str | None] = [None] * len(shape)
    if mesh.shape["tensor"] > 1:
        for pattern, dimension in TENSOR_RULES.items():
            if re.fullmatch(pattern, name):
                if shape[dimension] % mesh.shape["tensor"]:
                    raise ConfigError(
                        f"config.mesh.tensor={mesh.shape['tensor']} does not divide dimension "
                        f"{dimension} of {name} {shape}: choose one that divides it."
                    )
                spec[dimension] = "tensor"
    fsdp = mesh.shape["fsdp"]
    if fsdp > 1 and math.prod(shape) >= MIN_FSDP_ELEMENTS:
        first = int(is_stacked(name))
        candidates = [d for d in range(first, len(shape)) if not spec[d] and shape[d] % fsdp == 0]
        if candidates:
            spec[max(candidates, key=lambda d: shape[d])] = "fsdp"
    return PartitionSpec(*spec)


def param_shardings(params: dict, mesh: Mesh) -> dict:
    """The sharding of every parameter; raises ConfigError if a tensor rule matches none."""
    shardings = fitting_shardings(params, mesh)
    if mesh.shape["tensor"] > 1:
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        for pattern in TENSOR_RULES:
            if not any(re.fullmatch(pattern, name) for name in names):
                raise ConfigError(
                    f"config.mesh.tensor={mesh.shape['tensor']}: the rule {pattern!r} matches no "
                    "parameter of this model; use config.mesh.fsdp instead."
                )
    return shardings


def fitting_shardings(tree: dict, mesh: Mesh) -> dict:
    """The sharding of every array by the rules for parameters, for those that no rule has to match."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, partition_spec(path_name(path), leaf.shape, mesh)),
        tree,
    )


def like_params(tree: dict, params: dict, shardings: dict, mesh: Mesh) -> dict:
    """Shardings of a state that mirrors the parameters, such as the optimiser's.

    An array whose path ends in a parameter's path and that has its shape lies where the parameter
    does, and so does one that has some of a stacked parameter's layers only; anything else is
    copied to every device.
    """
    known = {
        path_name(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def sharding_of(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        for start in range(len(path)):
            name = path_name(path[start:])
            shape, sharding = known.get(name, (None, None))
            split = int(is_stacked(name))  # The layer axis never is.
            if shape and len(shape) == leaf.ndim and shape[split:] == leaf.shape[split:]:
                return sharding
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def shardings_of(tree: Any) -> Any:
    """The shardings of the arrays of a tree, now or to be."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def describe(params: dict, shardings: dict) -> str:
    """A table of every parameter: path, shape, split, bytes on one device."""
    rows, total = [], 0
    for (path, leaf), sharding in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
    ):
        shard = math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        split = ", ".join(axis or "-" for axis in sharding.spec) if any(sharding.spec) else "copied"
        rows.append((path_name(path), str(tuple(leaf.shape)), split, f"{shard:,}"))
        total += shard
    rows.append(("total", "", "", f"{total:,}"))
    header = ("parameter", "shape", "split over", "bytes per device")
    return format_table([header, *rows])
