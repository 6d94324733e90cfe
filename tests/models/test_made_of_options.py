"""Every layer is made as the model's options say: none keeps a default of its own."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.filled import filled_model, random_images
from tests.models.test_execution import equations
from vit_jax.errors import ConfigError
from vit_jax.models import __main__ as models_table
from vit_jax.models import abstract_model, attention, layers, model_options, norms, registry, vit
from vit_jax.models.axial import AxialUnit, RelativeAttention
from vit_jax.models.base import ImageClassifier, mean_pool
from vit_jax.models.dropout import THREEFRY
from vit_jax.models.layers import MLP, Attention, joint
from vit_jax.models.norms import BatchNorm, LayerNorm
from vit_jax.models.patches import PatchEmbedding
from vit_jax.models.positions import learned_positions, on_another_grid, position_table, sincos_2d
from vit_jax.models.resnet import GroupNorm, StandardizedConv, standardize
from vit_jax.models.vit import VisionTransformer

TOKENS = {"width": 16, "depth": 1, "mlp_width": 24, "image_size": 32, "norm_epsilon": 0.125}
VIT = {**TOKENS, "num_heads": 2, "dropout_rate": 0.25, "attention_dropout_rate": 0.375}
VIT |= {"dropout_bits": THREEFRY, "gelu": "quick", "pooling": "attention"}
NORMS = {"pre_norm": True, "attention_norm": True, "mlp_norm": True, "query_key_norm": True}
STEM = {"stem_depths": (1,), "stem_width_factor": 0.5, "patch_size": 2}
STEM |= {"stem_group_norm_epsilon": 0.125, "stem_kernel_epsilon": 0.25}
RESNET = {"image_size": 32, "stage_depths": (1,), "width_factor": 0.5}
RESNET |= {"group_norm_epsilon": 0.125, "kernel_epsilon": 0.25}
FAMILIES = [
    ("R50+ViT-B/16", {**VIT, **NORMS, **STEM, "mlp": "swiglu", "representation_size": 8}),
    ("ViT-B/16", {**VIT, **NORMS, "patch_size": 8}),
    ("BiT-R50x1", RESNET),
    ("AxialResNet50", RESNET),
    ("Mixer-B/16", {**TOKENS, "token_mlp_width": 8, "patch_size": 8, "gelu": "quick"}),
]
EXACT = {("head",), ("pre_logits",)}  # In float32 whatever the model computes in.


@pytest.mark.parametrize(("name", "options"), FAMILIES, ids=[name for name, _ in FAMILIES])
def test_the_options_reach_every_layer(name, options):
    seen = set()
    for path, layer in nnx.iter_graph(abstract_model(name, **options, dtype="bfloat16")):
        if isinstance(layer, LayerNorm | GroupNorm):
            assert layer.epsilon == 0.125, path
        elif isinstance(layer, StandardizedConv):
            assert layer.epsilon == 0.25, path
        elif isinstance(layer, MLP):
            assert layer.gelu == "quick", path
            rate = 0.25 if path[0] == "blocks" and not name.startswith("Mixer") else 0
            assert layer.dropout_rate == rate, path
            assert layer.dropout_bits == THREEFRY or not rate, path
        elif isinstance(layer, Attention):
            assert (layer.dropout_rate, layer.dropout_bits) == (0.375, THREEFRY), path
        elif not isinstance(layer, nnx.Linear | nnx.LinearGeneral | PatchEmbedding):
            continue
        if hasattr(layer, "dtype"):
            wanted = jnp.dtype("float32" if path in EXACT else "bfloat16")
            assert jnp.dtype(layer.dtype or "float32") == wanted, path
        seen.add(type(layer))
    assert len(seen) >= 3


def hashes(**options):
    """How often a training step's forward pass draws a dropout of hashed positions."""
    model = abstract_model("ViT-B/16", **{**VIT, "patch_size": 8, **options})
    graphdef, state = nnx.split(model)
    program = jax.make_jaxpr(
        lambda state, images: nnx.merge(graphdef, state)(images, key=jax.random.key(0))
    )
    found = program(state, random_images(model.options))
    return len(list(equations(found.jaxpr, "optimization_barrier")))


def test_each_dropout_has_the_bits_that_are_asked_for():
    """After the positions; on the weights, after the attention, and twice in the MLP."""
    assert hashes(dropout_bits=16) == 5
    assert hashes(dropout_bits=THREEFRY) == 0


def test_what_is_random_before_the_blocks_and_in_them_has_keys_of_its_own(monkeypatch):
    keys = []

    def seen(function):
        return lambda *given: keys.extend(x for x in given if is_key(x)) or function(*given)

    def is_key(x):
        return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)

    monkeypatch.setattr(vit, "dropout", seen(lambda x, *_: x))
    monkeypatch.setattr(vit, "drop_patches", seen(lambda x, *_: x))
    monkeypatch.setattr(VisionTransformer, "encode", seen(lambda _, x, *rest: (x, {})))
    graphdef, state = nnx.split(abstract_model("ViT-B/16", **VIT, patch_size=8))
    model = nnx.merge(graphdef, jax.tree.map(lambda leaf: np.zeros(leaf.shape, "f4"), state))
    monkeypatch.setattr(VisionTransformer, "pool", lambda _, x: x)
    model.features(random_images(model.options), jax.random.key(3), lambda x: x, ())
    words = {tuple(jax.random.key_data(key).tolist()) for key in [*keys, jax.random.key(3)]}
    assert (len(keys), len(words)) == (3, 4)


@pytest.mark.parametrize("preactivation", [False, True])
def test_epsilons_of_a_resnet_are_added_to_variances(preactivation):
    """Large ones, and each form's own of kernels that hardly vary."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(1, 2, (2, 3, 2, 64)), rng.normal(1, 0.5, (3, 3, 4, 2))
    options = model_options("BiT-R50x1", group_norm_epsilon=0.5, preactivation=preactivation)
    groups = x.reshape(2, 6, 32, 2)
    mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    expected = ((groups - mean) / np.sqrt(variance + 0.5)).reshape(x.shape)
    norm = GroupNorm(64, options)
    np.testing.assert_allclose(norm(jnp.float32(x)), expected, atol=1e-5)
    # Of what does not vary, rounding may make the difference of squares negative.
    constant = jnp.full((1, 7, 64), 1234.567, jnp.float32)
    assert np.isfinite(GroupNorm(64, model_options("BiT-v1-R50x1"))(constant)).all()

    def standardized(kernel, epsilon, outside=0.0):
        centred = kernel - kernel.mean((0, 1, 2))
        return centred / (np.sqrt(centred.var((0, 1, 2)) + epsilon) + outside)

    found = standardize(jnp.float32(kernel), preactivation, 0.5)
    np.testing.assert_allclose(found, standardized(kernel, 0.5), atol=1e-5)
    small = 1e-5 * (kernel - kernel.mean((0, 1, 2)))
    own = (1e-10, 0.0) if preactivation else (0.0, 1e-5)
    found = standardize(jnp.float32(small), preactivation)
    np.testing.assert_allclose(found, standardized(small, *own), rtol=1e-3, atol=1e-4)


def test_position_tables_begin_with_the_spread_that_is_asked_for():
    grid = {"grid": (40, 50), "num_patches": 2000, "num_prefix_tokens": 1, "prefix_positions": True}
    given = {"width": 32, "num_heads": 2, "position_std": 3.0, "dtype": "float32", **grid}
    given |= {"attention_dropout_rate": 0.0, "dropout_bits": 16, "attention": "xla"}
    one, two = (
        learned_positions(types.SimpleNamespace(positions=kind, **given), nnx.Rngs(0))
        for kind in ("learned_1d", "learned_2d")
    )
    attention = Attention(types.SimpleNamespace(**given), nnx.Rngs(0), relative_length=100)
    for table in (one, two.columns, two.rows, attention.relative_positions):
        assert np.std(table[...]) == pytest.approx(3, rel=0.1)


def test_axial_attention_has_the_length_of_its_axis():
    """Rows of 12 elements, columns of 8; the spread of positions is that of a head."""
    sizes = {"image_size": (32, 48), "width_factor": 0.5, "stage_depths": (1,), "num_heads": 2}
    unit = abstract_model("AxialResNet50", **sizes).trunk.stage1["unit01"]
    assert unit.row_attention.relative_positions.shape == (23, 32)
    assert unit.column_attention.relative_positions.shape == (15, 32)
    options = model_options("AxialResNet50", **sizes)
    table = RelativeAttention(400, 32, options, nnx.Rngs(0)).relative_positions[...]
    assert np.std(table) == pytest.approx(0.25, rel=0.05), "1 / √(32 / 2)"


def test_embeddings_of_a_layer_leave_out_all_that_are_no_patches():
    """In float32; of the last block they are normalised, if the norm is not behind the pooling."""
    blocks = jnp.arange(3 * 2 * 6 * 4, dtype=jnp.bfloat16).reshape(3, 2, 6, 4)
    model = types.SimpleNamespace(
        options=types.SimpleNamespace(has_class_token=True, num_prefix_tokens=3),
        outputs=lambda images, capture: {"block_outputs": blocks},
        normalize_tokens=lambda tokens: tokens + 1000,
    )
    found = ImageClassifier.embed(model, None, "patches", -3)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, blocks[0, :, 3:])
    np.testing.assert_array_equal(
        ImageClassifier.embed(model, None, "class_token", 2), blocks[2, :, 0]
    )
    found = ImageClassifier.embed(model, None, "mean")
    np.testing.assert_array_equal(found, mean_pool(blocks[2, :, 3:] + 1000))
    model = types.SimpleNamespace(options=types.SimpleNamespace(norm_after_pooling=False))
    assert ImageClassifier.normalize_tokens(model, 5) == 5, "it has none"
    model.norm = lambda tokens: -tokens
    assert ImageClassifier.normalize_tokens(model, 5) == -5
    model.options.norm_after_pooling = True
    assert ImageClassifier.normalize_tokens(model, 5) == 5


@pytest.mark.parametrize(
    ("features", "layer", "message"),
    [
        ("logits", None, r"features='logits': must be one of pre_logits, .*mean"),
        ("pre_logits", 0, "layer=0: pre_logits are of no block"),
        ("mean", 3, r"layer=3: the model has 3 blocks, 0 to 2\."),
        ("mean", -4, "layer=-4: the model has 3 blocks, 0 to 2"),
        ("class_token", None, "features='class_token': the model has no class token"),
    ],
)
def test_embeddings_that_a_model_does_not_have(features, layer, message):
    model = types.SimpleNamespace(
        options=types.SimpleNamespace(num_prefix_tokens=1),
        outputs=lambda images, capture: {"block_outputs": np.zeros((3, 2, 6, 4))},
        normalize_tokens=lambda tokens: tokens,
    )
    with pytest.raises(ConfigError, match=f"^{message}"):
        ImageClassifier.embed(model, None, features, layer)


IMAGES_8_12_3 = types.SimpleNamespace(options=types.SimpleNamespace(image_size=(8, 12), channels=3))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        (
            (8, 12, 3),
            "float32",
            r"^one image of shape \(8, 12, 3\) given .* for batches \[B, H, W, C\]: .*\[None\]",
        ),
        ((8, 12), "float32", r"^an array of shape \(8, 12\) given to a model for batches"),
        ((1, 2, 8, 12, 3), "float32", r"shape \(1, 2, 8, 12, 3\) given to a model for batches"),
        ((2, 12, 8, 3), "float32", r"shape \(12, 8, 3\) given to a model for \(8, 12, 3\)"),
        ((2, 8, 12, 1), "float32", r"shape \(8, 12, 1\) given to a model for \(8, 12, 3\)"),
        ((2, 8, 12, 3), "uint8", "images are uint8, expected normalised floats"),
        ((2, 8, 12, 3), "bool", "images are bool, expected normalised floats"),
    ],
)
def test_images_that_a_model_does_not_take(shape, dtype, message):
    with pytest.raises(ConfigError, match=message):
        ImageClassifier.check_images(IMAGES_8_12_3, np.zeros(shape, dtype))


@pytest.mark.parametrize(("count", "dtype"), [(2, "float16"), (0, "float32")])
def test_images_that_a_model_takes(count, dtype):
    ImageClassifier.check_images(IMAGES_8_12_3, np.zeros((count, 8, 12, 3), dtype))


def test_a_model_without_tokens_has_no_number_of_them():
    assert model_options("BiT-R50x1").num_tokens is None
    assert model_options("Mixer-B/16", image_size=(32, 48)).num_tokens == 6


def test_each_head_classifies_its_own_token():
    """The answer is the mean of both."""
    options = types.SimpleNamespace(distillation_token=True, num_classes=5)
    heads = {"head": lambda x: 2 * x, "distillation_head": lambda x: 10 * x}
    model = types.SimpleNamespace(options=options, **heads)
    model.classify_apart = lambda given: VisionTransformer.classify_apart(model, given)
    given = np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])
    apart = np.asarray(model.classify_apart(given))
    assert apart.tolist() == [[[2, 4], [30, 40]], [[10, 12], [70, 80]]]
    found = np.asarray(VisionTransformer.classify(model, given))
    np.testing.assert_array_equal(found, apart.mean(1))


def test_a_fixed_table_on_an_oblong_grid_and_a_learned_one_on_another():
    """Columns change first; the rows of a class token and a register stay on another grid."""
    options = types.SimpleNamespace(positions="sincos_2d", grid=(2, 3), width=8, num_tokens=8)
    found = np.asarray(position_table(None, options))
    assert not found[0, :2].any()
    np.testing.assert_array_equal(found[0, 2:], sincos_2d(2, 3, 8)[0])
    np.testing.assert_allclose(found[0, 4, ::2][[0, 2]], [np.sin(2), 0], atol=1e-6)
    table = np.random.default_rng(0).normal(size=(1, 2 + 12, 5)).astype(np.float32)
    found = on_another_grid(jnp.asarray(table), 2, (3, 4), (2, 2))
    np.testing.assert_array_equal(found[:, :2], table[:, :2])
    # Keys' cubic kernel, a = -1/2, halfway: -1/16, 9/16, 9/16, -1/16; of what lies outside nothing.
    columns = np.float32([[9, 9, -1, 0], [0, -1, 9, 9]])
    columns /= columns.sum(1, keepdims=True)
    x = np.abs(np.float32([[0.25], [1.75]]) - np.arange(3))
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    rows = np.where(x <= 1, near, np.where(x < 2, far, 0))
    rows /= rows.sum(1, keepdims=True)
    expected = np.einsum("ir,jc,rcd->ijd", rows, columns, table[0, 2:].reshape(3, 4, 5))
    np.testing.assert_allclose(found[0, 2:], expected.reshape(4, 5), atol=1e-5)


def test_tokens_of_images_of_another_size_get_the_table_on_their_grid():
    """As local views in self-distillation; rows of tokens that are no patches stay."""
    model = filled_model("ViT-B/16", **TOKENS, num_heads=2, num_registers=2, patch_size=8)
    patches = np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32)
    table = model.position_table((2, 3))
    assert table.shape == (1, 3 + 6, 16)
    np.testing.assert_array_equal(table[:, :3], model.position_embedding[:, :3])
    found = model.embed_sequence(patches, grid=(2, 3))
    prefix = np.concatenate([model.class_token[...], model.registers[...]], 1).repeat(2, 0)
    expected = np.concatenate([prefix, patches], 1) + table
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("final_norm", [False, True])
def test_a_norm_after_the_pooling_is_of_float32_if_there_is_one(final_norm):
    options = {"pooling": "average", "norm_after_pooling": True, "final_norm": final_norm}
    sizes = {**TOKENS, "num_heads": 2, "patch_size": 8, "dtype": "bfloat16"}
    model = filled_model("ViT-B/16", **sizes, **options)
    tokens = jnp.asarray(np.random.default_rng(0).normal(size=(2, 16, 16)), jnp.bfloat16)
    mean = np.float32(tokens).mean(1)
    if final_norm:
        centred = mean - mean.mean(-1, keepdims=True)
        mean = centred / np.sqrt(centred.var(-1, keepdims=True) + 0.125)
        mean = mean * model.norm.scale[...] + model.norm.bias[...]
    found = model.pool(tokens)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, mean, atol=1e-5)


def test_a_model_sees_one_channel_at_least():
    assert model_options("ViT-B/16", channels=1).channels == 1
    with pytest.raises(ConfigError, match=r"model\.channels=0"):
        model_options("ViT-B/16", channels=0)


@pytest.mark.parametrize(("heads", "fits"), [(32, True), (64, False), (48, False)])
def test_half_the_width_of_an_axial_heads_query_is_whole(heads, fits):
    if fits:
        assert model_options("AxialResNet50", num_heads=heads).num_heads == heads
    else:
        with pytest.raises(ConfigError, match="twice it must divide 64"):
            model_options("AxialResNet50", num_heads=heads)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_joint_product_is_that_of_each_layer(use_bias):
    kwargs = {"dtype": jnp.bfloat16, "use_bias": use_bias, "rngs": nnx.Rngs(0)}
    layers = [nnx.LinearGeneral(4, (2, 3), **kwargs) for _ in range(3)]
    x = jnp.linspace(-1, 1, 8).reshape(2, 4)
    found = joint(layers, x)
    assert [part.dtype for part in found] == [jnp.bfloat16] * 3
    for part, layer in zip(found, layers, strict=True):
        np.testing.assert_array_equal(np.float32(part), np.float32(layer(x)))


def test_what_is_made_anew_is_said_where_no_loop_does(monkeypatch):
    said = []

    def rematerialize(step, remat, prevent_cse):
        said.append((remat, prevent_cse))
        return step

    monkeypatch.setattr(layers, "rematerialize", rematerialize)
    for unroll, deferred in ((2, True), (1, True), ("auto", True), (2, False), (9, True)):
        block = nnx.Module()
        block.scale = nnx.Param(jnp.ones(3))
        if deferred:
            block.scale = layers.Deferred(jnp.ones(3), lambda stored: 2 * stored)
        monkeypatch.setattr(layers.nnx, "split", lambda block: ((), {"scale": block.scale}))
        monkeypatch.setattr(layers.nnx, "merge", lambda graphdef, parameters: parameters["scale"])
        monkeypatch.setattr(
            layers.jax.lax, "scan", lambda step, x, inputs, unroll: said.append(unroll)
        )
        options = types.SimpleNamespace(scan_unroll=unroll, depth=3, remat="full")
        layers.scan_blocks(block, None, None, None, options)
        expected = {"auto": 1, 9: 3}.get(unroll, unroll)
        assert said == [("full", deferred and unroll not in (1, "auto")), expected]
        said.clear()


def test_weights_along_axes_are_in_the_order_of_images():
    x = jnp.arange(2 * 3 * 4.0).reshape(2, 3, 4, 1)

    def same(x):
        return x

    unit = types.SimpleNamespace(
        **dict.fromkeys(("conv1", "norm1", "conv3", "norm3"), same),
        **dict.fromkeys(("column_attention", "row_attention"), lambda x: (x, x)),
        projects=False,
        stride=1,
    )
    found, (rows, columns) = AxialUnit.__call__(unit, x)
    np.testing.assert_array_equal(found, 2 * x)
    np.testing.assert_array_equal(rows, x)
    np.testing.assert_array_equal(columns, x.swapaxes(1, 2))


def test_statistics_follow_a_batch_by_a_tenth_and_no_gradient_moves_them():
    old = {"mean": np.float32([1, 2]), "variance": np.float32([4, 1])}
    new = BatchNorm.follow(old, np.float32([11, 3]), np.float32([125, 8.9]))
    np.testing.assert_allclose(new["mean"], [2, 2.1], rtol=1e-6)
    np.testing.assert_allclose(new["variance"], [4, 0.9], rtol=1e-6)  # 0 at least of a batch.
    norm = BatchNorm(2)
    norm.mean[...] = np.float32([1, 2])
    norm.variance[...] = np.float32([4, 0])
    graphdef, state = nnx.split(norm)
    x = np.float32([[3, 2.001]])
    y, pull = jax.vjp(lambda state: nnx.merge(graphdef, state)(x), state)
    np.testing.assert_allclose(y, [[1, 1]], rtol=1e-3)
    assert not any(gradient.any() for gradient in jax.tree.leaves(pull(y)))


def test_rounding_leaves_no_negative_variance():
    values = np.random.default_rng(0).uniform(1, 1e4, 50).astype(np.float32)
    x = np.repeat(values[:, None], 7, axis=1)
    y, _, inverse = norms.normalize_and_keep(1e-6, x, np.ones(7, "f"), np.zeros(7, "f"))
    assert np.isfinite(y).all()
    assert np.isfinite(inverse).all()


def test_a_stem_is_made_of_its_own_options():
    name = "R26+ViT-S/32"
    own = {"stem_width_factor": 0.5, "channels": 5, "dtype": "bfloat16", "remat": "full"}
    stem = model_options(name, stem_kernel_epsilon=0.1, stem_group_norm_epsilon=0.2, **own).stem
    assert (stem.width_factor, stem.channels, stem.dtype) == (0.5, 5, "bfloat16")
    assert (stem.remat, stem.kernel_epsilon, stem.group_norm_epsilon) == ("full", 0.1, 0.2)


def test_a_distillation_token_has_a_head_of_its_own():
    sizes = {"width": 16, "depth": 1, "mlp_width": 8, "num_heads": 2, "num_classes": 5}
    sizes |= {"patch_size": 4, "image_size": 4}

    def beyond(**options):
        found = model_options("ViT-B/16", **sizes, **options)
        return found.macs() - found.embedding_macs() - found.encoder_macs()

    assert beyond() == 16 * 5
    assert beyond(distillation_token=True) == 2 * 16 * 5
    assert beyond(representation_size=3) == 16 * 3 + 3 * 5
    both = beyond(distillation_token=True, representation_size=3)
    assert both == 2 * (16 * 3 + 3 * 5)


@pytest.mark.parametrize("name", ["kernel_epsilon", "group_norm_epsilon"])
def test_epsilons_are_not_negative(name):
    assert getattr(model_options("BiT-R50x1", **{name: 0.0}), name) == 0
    with pytest.raises(ConfigError, match=rf"model\.{name}"):
        model_options("BiT-R50x1", **{name: -0.1})


RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate")
AMOUNTS = ("position_std", "kernel_std", "layer_scale", "norm_epsilon")
COUNTS = ("num_registers", "representation_size", "rotary_reference", "num_classes")
SIZES = ("depth", "mlp_width", "num_heads", "scan_unroll")
WORDS = (
    *("positions", "position_placement", "relative_position_bias", "pooling", "gelu", "attention"),
    *("stochastic_depth_schedule", "dropout_bits", "mlp", "rotary_coordinates", "dtype"),
    *("matmul_precision", "head_norm", "remat"),
)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *(("ViT-B/16", rate, 1.0) for rate in RATES),
        *(("ViT-B/16", field, -1) for field in (*RATES, *AMOUNTS, *COUNTS)),
        *(("ViT-B/16", field, 0) for field in SIZES),
        *(("ViT-B/16", field, "none such") for field in WORDS),
        *(("Mixer-B/16", "stochastic_depth_rate", rate) for rate in (1.0, -0.1)),
        *(("Mixer-B/16", field, 0) for field in ("depth", "token_mlp_width", "mlp_width")),
        *(("Mixer-B/16", field, "none such") for field in ("gelu", "scan_unroll")),
        ("AxialResNet50", "num_heads", 0),
    ],
)
def test_values_that_no_model_has(name, field, value):
    with pytest.raises(ConfigError, match=rf"model\.{field}="):
        model_options(name, **{field: value})


def test_the_least_values_are_values():
    least = {**dict.fromkeys((*RATES, *AMOUNTS, *COUNTS), 0), **dict.fromkeys(SIZES, 1)}
    assert model_options("ViT-B/16", **least).scan_unroll == 1


def test_the_seed_is_that_of_the_initial_parameters(monkeypatch):
    seen = []
    monkeypatch.setattr(registry, "build_model", lambda name, key, options: seen.append(key))
    for seed in (0, 3):
        registry.create_model("ViT-B/16", seed=seed)
    assert seen == [jax.random.key(0), jax.random.key(3)]


@pytest.mark.parametrize("pre_norm", [True, False])
def test_a_norm_before_the_blocks_needs_no_bias_before_it(pre_norm):
    model = abstract_model("ViT-B/16", pre_norm=pre_norm, depth=1)
    assert hasattr(model.embedding, "bias") != pre_norm


def test_sizes_of_models_are_of_rows_and_columns():
    described = models_table.describe("ViT-Ti/16", image_size=(32, 64))
    assert (described.input_size, described.tokens) == ("32x64", 1 + 2 * 4)


@pytest.mark.parametrize(
    ("width", "dtype", "taken"),
    [
        *((8, "bfloat16", True), (128, "bfloat16", True), (136, "bfloat16", False)),
        *((60, "bfloat16", False), (64, "float32", False)),
    ],
)
def test_the_heads_that_nvidias_library_takes(width, dtype, taken):
    assert (not attention.cudnn_obstacle(width, dtype)) == taken


def test_a_pooled_token_is_of_float32():
    options = types.SimpleNamespace(
        **{"pooling": "token", "distillation_token": False, "norm_after_pooling": False},
        representation_size=0,
    )
    model = types.SimpleNamespace(options=options, normalize_tokens=lambda tokens: tokens)
    tokens = jnp.arange(12, dtype=jnp.bfloat16).reshape(2, 3, 2)
    found = VisionTransformer.pool(model, tokens)
    assert (found.dtype, found.tolist()) == (jnp.float32, [[0, 1], [6, 7]])
    options.distillation_token = True
    assert VisionTransformer.pool(model, tokens).tolist() == [[0, 1, 2, 3], [6, 7, 8, 9]]
