"""The mesh, where every parameter lies on it, and the table that says so."""

import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.states import mesh_of
from vit_jax.config import default_config
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.models import registry
from vit_jax.optimizer import build_optimizer
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.parameters import path_name

SMALL = {"width": 128, "depth": 3, "num_heads": 4, "mlp_width": 512, "num_classes": 10}
NAMES = ("data", "fsdp", "tensor")


def abstract_params(name="ViT-Ti/16", **options):
    return nnx.to_pure_dict(nnx.split(registry.abstract_model(name, **options))[1])


def by_name(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize(
    ("num_devices", "axes", "shape"),
    [
        (1, {}, (1, 1, 1)),
        (8, {}, (8, 1, 1)),
        (8, {"fsdp": 8}, (1, 8, 1)),
        (8, {"fsdp": 4}, (2, 4, 1)),
        (8, {"data": 2, "fsdp": 2, "tensor": 2}, (2, 2, 2)),
        (6, {"tensor": 2}, (3, 1, 2)),
        (8, {"data": 2, "fsdp": -1}, (2, 4, 1)),
        (8, {"data": 2, "tensor": -1}, (2, 1, 4)),
        (8, {"slices": 1}, (8, 1, 1)),
    ],
)
def test_mesh_takes_all_devices(num_devices, axes, shape):
    mesh = mesh_of(num_devices, **axes)
    assert tuple(mesh.shape.items()) == tuple(zip(NAMES, shape, strict=True))
    assert list(mesh.devices.flat) == jax.devices()[:num_devices]
    assert mesh.axis_types == (AxisType.Auto,) * 3


def test_mesh_is_over_every_device_by_default():
    assert sharding.build_mesh(default_config().mesh).size == jax.device_count() == 8


@pytest.mark.parametrize(
    ("num_devices", "axes", "shown"),
    [
        (8, {"fsdp": 3}, "data=-1 x fsdp=3 x tensor=1"),
        (8, {"data": 4}, "data=4 x fsdp=1 x tensor=1"),
        (1, {"fsdp": 8}, "data=-1 x fsdp=8 x tensor=1"),
        (8, {"data": 0}, "data=0 x fsdp=1 x tensor=1"),
        (4, {"data": 8}, "data=8 x fsdp=1 x tensor=1"),
        (8, {"fsdp": 0}, "data=-1 x fsdp=0 x tensor=1"),
        (8, {"data": 3, "fsdp": -1}, "data=3 x fsdp=-1 x tensor=1"),
    ],
)
def test_axes_that_do_not_multiply_to_the_devices_are_refused(num_devices, axes, shown):
    """Axes are shown as they were asked for."""
    with pytest.raises(
        ConfigError, match=f"{shown} does not multiply to the {num_devices} devices"
    ):
        mesh_of(num_devices, **axes)


def test_only_one_axis_takes_the_rest():
    with pytest.raises(ConfigError, match="data and fsdp are both -1"):
        mesh_of(fsdp=-1)


def fake_devices(slices, processes=None, platform="tpu"):
    """Four devices, 2x2, in each slice, or other counts; without slices where that is None."""
    groups = slices or processes
    places = [group for group, count in enumerate(groups) for _ in range(count)]
    return [
        types.SimpleNamespace(
            id=number,
            platform=platform,
            device_kind=f"a {platform}",
            process_index=place,
            coords=(number % 2, number % 4 // 2, 0),
            core_on_chip=0,
            **({"slice_index": place} if slices else {}),
        )
        for number, place in enumerate(places)
    ]


def grid_of(devices, **axes):
    """The numbers of the devices in the mesh that these axes make of them."""
    config = default_config().mesh
    config.update(axes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "Mesh", lambda grid, axes, axis_types: grid)
        grid = sharding.build_mesh(config, devices)
    return np.vectorize(lambda device: device.id, otypes=[int])(grid)


@pytest.mark.parametrize(
    ("devices", "slices"),
    [
        (fake_devices((4, 4, 4)), 0),  # TPUs say to which slice they belong.
        (fake_devices((4, 4, 4)), 3),
        (fake_devices(None, (4, 4, 4), "gpu"), 3),  # One process a host.
        (fake_devices((4, 4, 4), platform="gpu"), 3),
    ],
)
def test_only_the_data_axis_crosses_slices(devices, slices):
    mixed = devices[::2] + devices[1::2]  # JAX promises no order.
    grid = grid_of(mixed, slices=slices, fsdp=2, tensor=2)
    assert grid.shape == (3, 2, 2)
    assert [set(row.ravel() // 4) for row in grid] == [{0}, {1}, {2}]
    grid = grid_of(mixed, slices=slices, fsdp=2)
    assert grid.shape == (6, 2, 1)
    assert [set(row.ravel() // 4) for row in grid] == [{0}, {0}, {1}, {1}, {2}, {2}]


def test_gpus_may_be_split_over_hosts_where_no_slices_are_asked_for():
    for devices in fake_devices(None, (4, 4), "gpu"), fake_devices((4, 4), platform="gpu"):
        for slices in (0, 1):
            assert grid_of(devices, slices=slices, fsdp=8).tolist() == [[[i] for i in range(8)]]


@pytest.mark.parametrize(
    ("devices", "axes", "message"),
    [
        (fake_devices((4, 4)), {"fsdp": 8}, "data=1 is not divisible by the 2 slices.* the 4 dev"),
        (fake_devices((4, 2)), {}, "the slices have 4, 2 devices"),
        (fake_devices((4, 4)), {"slices": 1}, "slices=1: the 8 devices form 2 slices"),
        (fake_devices(None, (4, 4), "gpu"), {"slices": 4}, "slices=4: .* form 2 processes"),
        (fake_devices(None, (4, 2), "gpu"), {"slices": 2}, "the processes have 4, 2 devices"),
    ],
)
def test_slices_that_do_not_fit_are_refused(devices, axes, message):
    with pytest.raises(ConfigError, match=message):
        grid_of(devices, **axes)


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "axes"),
    [(8, 1, {}), (128, 4, {}), (8, 2, {"tensor": 2}), (4, 1, {"data": 2, "fsdp": 2, "tensor": 2})],
)
def test_batches_that_divide_are_accepted(batch_size, accumulation, axes):
    sharding.check_batch(batch_size, accumulation, mesh_of(**axes))


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "nearest"),
    [(7, 1, "8"), (100, 1, "96 or 104"), (24, 2, "16 or 32"), (8, 4, "32")],
)
def test_batches_that_do_not_divide_are_refused_with_the_nearest(batch_size, accumulation, nearest):
    with pytest.raises(ConfigError, match=rf"batch_size={batch_size} is not.*: {nearest}\."):
        sharding.check_batch(batch_size, accumulation, mesh_of())


@pytest.mark.parametrize(
    ("shares", "factors"),
    [
        (1, r"4 \(devices along data x fsdp\) x 3 \(.*accumulation_steps\) = 12"),
        (4, r"2 \(devices along fsdp\) x 3 \(.*accumulation_steps\) x 4 \(.*shares\) = 24"),
    ],
)
def test_what_a_batch_has_to_divide_into_is_told(shares, factors):
    with pytest.raises(ConfigError, match=f"batch_size=5 is not divisible by {factors};"):
        sharding.check_batch(5, 3, mesh_of(data=2, fsdp=2, tensor=2), shares)


@pytest.mark.parametrize(
    ("axes", "shares", "divides", "not_so"),
    [
        ({"data": 8}, 8, 16, 12),  # Each device has shares of its own: they divide what one gets.
        ({"data": 8}, 3, 48, 24),
        ({"data": 2, "fsdp": 4}, 2, 16, 8),
        ({"data": 2, "fsdp": 4}, 3, 48, 24),
    ],
)
def test_shares_of_a_batch_divide_it_too(axes, shares, divides, not_so):
    sharding.check_batch(divides, 2, mesh_of(**axes), shares)
    with pytest.raises(ConfigError, match=rf"x {shares} \(config\.optimizer\.sharpness\.shares\)"):
        sharding.check_batch(not_so, 2, mesh_of(**axes), shares)


def test_the_batch_is_split_over_data_and_fsdp():
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    batch = jax.device_put(np.arange(8).reshape(8, 1), sharding.batch_sharding(mesh))
    rows = [np.asarray(shard.data).ravel().tolist() for shard in batch.addressable_shards]
    assert rows == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]
    copied = jax.device_put(np.arange(8), sharding.replicated(mesh))
    assert all(shard.data.shape == (8,) for shard in copied.addressable_shards)


def test_fsdp_splits_the_largest_dimension_that_divides_but_never_the_layers():
    mesh = mesh_of(fsdp=8)
    found = {
        name: tuple(place.spec)
        for name, place in by_name(
            sharding.param_shardings(abstract_params(num_classes=1000), mesh)
        ).items()
    }
    # ViT-Ti/16: width 192, 12 layers, 3 heads of 64, MLP 768. Below 64 Ki elements: copied.
    assert {name: spec for name, spec in found.items() if any(spec)} == {
        "embedding/kernel": (None, None, None, "fsdp"),  # [16, 16, 3, 192]
        "blocks/attention/query/kernel": (None, "fsdp", None, None),  # [12, 192, 3, 64]
        "blocks/attention/key/kernel": (None, "fsdp", None, None),
        "blocks/attention/value/kernel": (None, "fsdp", None, None),
        "blocks/attention/out/kernel": (None, None, None, "fsdp"),  # [12, 3, 64, 192]
        "blocks/mlp/dense1/kernel": (None, None, "fsdp"),  # [12, 192, 768]
        "blocks/mlp/dense2/kernel": (None, "fsdp", None),  # [12, 768, 192]
        "head/kernel": (None, "fsdp"),  # [192, 1000]
    }


def test_tensor_splits_heads_and_columns_and_fsdp_what_is_left():
    params = abstract_params("ViT-B/16", num_classes=21_843)
    found = by_name(sharding.param_shardings(params, mesh_of(data=1, fsdp=4, tensor=2)))
    assert {name: tuple(place.spec) for name, place in found.items() if any(place.spec)} == {
        "embedding/kernel": (None, None, None, "fsdp"),  # [16, 16, 3, 768]
        "position_embedding": (None, None, "fsdp"),  # [1, 197, 768]
        "blocks/attention/query/kernel": (None, "fsdp", "tensor", None),  # [12, 768, 12, 64]
        "blocks/attention/key/kernel": (None, "fsdp", "tensor", None),
        "blocks/attention/value/kernel": (None, "fsdp", "tensor", None),
        "blocks/attention/query/bias": (None, "tensor", None),
        "blocks/attention/key/bias": (None, "tensor", None),
        "blocks/attention/value/bias": (None, "tensor", None),
        "blocks/attention/out/kernel": (None, "tensor", None, "fsdp"),  # [12, 12, 64, 768]
        "blocks/mlp/dense1/kernel": (None, "fsdp", "tensor"),  # [12, 768, 3072]
        "blocks/mlp/dense1/bias": (None, "tensor"),
        "blocks/mlp/dense2/kernel": (None, "tensor", "fsdp"),
        "head/kernel": ("fsdp", None),  # 4 divides 768, not 21,843
    }


@pytest.mark.parametrize("name", ["ViT-B/16", "ViT-H/14", "R50+ViT-B/16", "BiT-R50x1"])
@pytest.mark.parametrize("axes", [{"fsdp": 8}, {"data": 2, "fsdp": 4}])
def test_every_model_is_split_wherever_it_can_be(name, axes):
    mesh = mesh_of(**axes)
    fsdp = mesh.shape["fsdp"]
    params = by_name(abstract_params(name, num_classes=1000))
    shardings = by_name(sharding.param_shardings(abstract_params(name, num_classes=1000), mesh))
    for path, leaf in params.items():
        spec = shardings[path].spec
        splittable = leaf.shape[1:] if path.startswith("blocks/") else leaf.shape
        large = math.prod(leaf.shape) >= sharding.MIN_FSDP_ELEMENTS
        expected = large and any(size % fsdp == 0 for size in splittable)
        assert ("fsdp" in spec) == expected, (path, leaf.shape, spec)
        if path.startswith("blocks/"):
            assert spec[0] is None, path


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blocks/mlp/dense1/kernel", (512, 32, 64), (None, None, "fsdp")),  # Most of it: layers.
        ("blocks/mlp/dense1/kernel", (512, 64, 32), (None, "fsdp", None)),
        (
            "blocks/mlp/dense2/kernel",
            (512, 12, 12),
            (None, None, None),
        ),  # 8 divides the layers only.
        ("blocks/norm1/scale", (64, 1024), (None, "fsdp")),
        ("blocks/norm1/scale", (2048, 33), (None, None)),
        ("embedding/kernel", (512, 32, 64), ("fsdp", None, None)),  # No layers here.
        ("other_blocks/kernel", (512, 12, 12), ("fsdp", None, None)),
    ],
)
def test_fsdp_never_splits_the_layers(name, shape, expected):
    """A scan over them would gather the whole stack for each."""
    mesh = mesh_of(data=1, fsdp=8)
    assert tuple(sharding.partition_spec(name, shape, mesh)) == expected
    # The same for a state of the optimiser's that has some of the layers only.
    parent, _, leaf = name.partition("/")
    params = {parent: {leaf: jax.ShapeDtypeStruct(shape, jnp.float32)}}
    places = sharding.param_shardings(params, mesh)
    fewer = {parent: {leaf: jax.ShapeDtypeStruct((8, *shape[1:]), jnp.float32)}}
    found = sharding.like_params({"mu": fewer}, params, places, mesh)["mu"][parent][leaf]
    copied = parent != "blocks" or not any(expected)
    assert tuple(found.spec) == (() if parent != "blocks" else expected)
    assert found.is_fully_replicated == copied


def test_a_tensor_axis_that_does_not_divide_the_heads_is_refused():
    refused = r"tensor=8 does not divide dimension 1 of blocks/attention/key/bias \(12, 3, 64\): "
    with pytest.raises(ConfigError, match=refused):
        sharding.param_shardings(abstract_params(), mesh_of(data=1, tensor=8))  # 3 heads.


def test_a_rule_that_matches_no_parameter_is_an_error(monkeypatch):
    with pytest.raises(ConfigError, match=r"matches no parameter.*mesh\.fsdp"):
        sharding.param_shardings(abstract_params("BiT-R50x1"), mesh_of(tensor=2))
    monkeypatch.setitem(sharding.TENSOR_RULES, r"blocks/mixer/kernel", 1)
    with pytest.raises(ConfigError, match="blocks/mixer/kernel"):
        sharding.param_shardings(abstract_params("ViT-B/16"), mesh_of(tensor=2))


@pytest.fixture(scope="module")
def state():
    """Real parameters and AdamW's state on a mesh with fsdp=8, with their shardings."""
    mesh = mesh_of(fsdp=8)
    config = default_config().optimizer
    config.update({"weight_decay": 0.1, "grad_clip_norm": 1.0})
    groups = parameter_groups(config, abstract_params("ViT-Ti/16", image_size=64, **SMALL))
    optimizer = build_optimizer(config, lambda count: 1e-3, groups)
    options = registry.model_options("ViT-Ti/16", image_size=64, **SMALL)

    def initialize():
        model = registry.build_model("ViT-Ti/16", jax.random.key(0), options)
        params = nnx.to_pure_dict(nnx.split(model)[1])
        return {"params": params, "optimizer": optimizer.init(params), "step": jnp.int32(0)}

    shapes = jax.eval_shape(initialize)
    places = sharding.param_shardings(shapes["params"], mesh)
    all_places = sharding.like_params(shapes, shapes["params"], places, mesh)
    return jax.jit(initialize, out_shardings=all_places)()


def test_fsdp_leaves_exactly_an_eighth_of_every_large_array_on_a_device(state):
    large = 0
    for name, array in by_name(state).items():
        sizes = {shard.data.size for shard in array.addressable_shards}
        assert len(array.addressable_shards) == 8, name
        if array.size >= sharding.MIN_FSDP_ELEMENTS:
            large += 1
            assert sizes == {array.size // 8}, name
            assert array.size % 8 == 0, name
        else:
            assert sizes == {array.size}, name
    # Patches, the MLP's two kernels, and Adam's two moments of each: [3, 128, 512] is 192 Ki.
    assert large == 3 * 3


def test_the_optimisers_state_lies_where_its_parameters_do(state):
    params = by_name(state["params"])
    followers = 0
    for name, array in by_name(state["optimizer"]).items():
        match = re.fullmatch(r"direction/(mu|nu)/(.*)", name)
        if match:
            followers += 1
            assert array.sharding == params[match[2]].sharding, name
        else:
            assert array.sharding.is_fully_replicated, name
    assert followers == 2 * len(params)


def test_a_state_of_another_shape_than_its_parameter_is_copied():
    mesh = mesh_of(fsdp=8)
    params = {"kernel": jax.ShapeDtypeStruct((512, 512), jnp.float32)}
    places = sharding.param_shardings(params, mesh)
    factored = {"rows": {"kernel": jax.ShapeDtypeStruct((512,), jnp.float32)}, **params}
    found = sharding.like_params(factored, params, places, mesh)
    assert found["rows"]["kernel"].is_fully_replicated
    stacked = {"blocks": {"bias": jax.ShapeDtypeStruct((3, 512 * 512), jnp.float32)}}
    one = {"mu": {"blocks": {"bias": jax.ShapeDtypeStruct((512 * 512,), jnp.float32)}}}
    where = sharding.param_shardings(stacked, mesh)
    alone = sharding.like_params(one, stacked, where, mesh)
    assert alone["mu"]["blocks"]["bias"].is_fully_replicated
    assert found["kernel"] == NamedSharding(mesh, PartitionSpec("fsdp", None))


def test_a_state_of_some_layers_lies_where_all_do():
    """As moments of partly frozen blocks: whatever else has fewer rows is copied."""
    mesh = mesh_of(fsdp=8)

    def kernel(*shape):
        return {"kernel": jax.ShapeDtypeStruct((*shape, 512, 512), jnp.float32)}

    params = {"blocks": kernel(4), "head": kernel()}
    places = sharding.param_shardings(params, mesh)
    moments = {"mu": {"blocks": kernel(3), "head": kernel()}, "nu": {"head": kernel(3)}}
    found = sharding.like_params(moments, params, places, mesh)
    assert found["mu"] == places
    assert found["nu"]["head"]["kernel"].is_fully_replicated


def test_the_table_says_what_each_device_holds():
    mesh = mesh_of(data=2, fsdp=4)
    params = abstract_params(image_size=64, **SMALL)
    table = sharding.describe(params, sharding.param_shardings(params, mesh))
    header, *rows, total = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    assert header == ["parameter", "shape", "split over", "bytes per device"]
    shapes = by_name(params)
    assert [row[0] for row in rows] == list(shapes)
    for name, shape, split, size in rows:
        assert shape == str(shapes[name].shape)
        parts = 4 if "fsdp" in split else 1
        assert int(size.replace(",", "")) == 4 * math.prod(shapes[name].shape) // parts
        assert split == "copied" or split.count(",") == len(shapes[name].shape) - 1
    assert total[0] == "total"
    expected = sum(int(row[3].replace(",", "")) for row in rows)
    assert int(total[1].replace(",", "")) == expected
    large = [4 * leaf.size for leaf in shapes.values() if leaf.size >= sharding.MIN_FSDP_ELEMENTS]
    whole = sum(4 * leaf.size for leaf in shapes.values())
    assert expected == whole - sum(large) * 3 // 4
