"""Logits, gradients and training trajectories against the reference implementations' (tests/golden)."""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from vit_jax.models import abstract_model
from vit_jax.models.positions import sincos_2d

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"

# The reference's names in ours, in order; `TRUNK` is `stem` in hybrids and `trunk` in ResNets.
RENAMES = (
    (r"^Transformer/encoderblock_(\d+)/", r"blocks/\1/"),
    (r"^(root_block/)?conv_root/", r"TRUNK/conv_root/"),
    (r"^gn_root/", r"TRUNK/norm_root/"),
    (r"^block(\d)/unit0?(\d)/", r"TRUNK/stage\1/unit0\2/"),
    (r"/conv_proj/", r"/projection/"),
    (r"/gn_proj/", r"/norm_projection/"),
    (r"/gn(\d)/", r"/norm\1/"),
    (r"^norm-pre-head/", r"norm/"),
    (r"^Transformer/encoder_norm/", r"norm/"),
    (r"^MAPHead_0/LayerNorm_0/", r"attention_pooling/norm/"),
    (r"^MAPHead_0/", r"attention_pooling/"),
    (r"/LayerNorm_0/", r"/norm1/"),
    (r"/LayerNorm_[12]/", r"/norm2/"),
    (r"/MultiHeadDotProductAttention_\d/", r"/attention/"),
    (r"/MlpBlock_\d/Dense_0/", r"/mlp/dense1/"),
    (r"/MlpBlock_\d/Dense_1/", r"/mlp/dense2/"),
    (r"^(Transformer/posembed_input/)?pos_embedding$", r"position_embedding"),
    (r"^cls$", r"class_token"),
)

VIT = {"width": 32, "mlp_width": 64, "num_heads": 2, "num_classes": 10}
BIT = {"num_classes": 10, "image_size": 48, "width_factor": 0.5, "stage_depths": (1, 2)}
MODELS = {
    "hybrid_stem": (
        "R+ViT-Ti/16",
        {**VIT, "depth": 3, "image_size": 32, "patch_size": 4, "stem_width_factor": 0.5},
    ),
    "hybrid_r_1_2": (
        "R50+ViT-B/16",
        {**VIT, "depth": 3, "image_size": 48, "stem_depths": (1, 2), "stem_width_factor": 0.5},
    ),
    "bv_vit_sincos_gap_rep": (
        "ViT-B/16",
        {**VIT, "depth": 2, "image_size": 32, "patch_size": 8}
        | {"positions": "sincos_2d", "pooling": "average", "representation_size": 32},
    ),
    "bv_vit_map": (
        "ViT-B/16",
        {**VIT, "depth": 2, "image_size": 32, "patch_size": 8, "pooling": "attention"},
    ),
    "bit_v1_postact": ("BiT-v1-R50x1", BIT),
    "bit_v1_postact_lowvar": ("BiT-v1-R50x1", BIT),
    "bit_v2_preact": ("BiT-R50x1", {**BIT, "pool_padding": "infinity"}),
    "bit_v2_preact_lowvar": ("BiT-R50x1", {**BIT, "pool_padding": "infinity"}),
    "bit_v2_preact_zeropad": ("BiT-R50x1", BIT),
}
HYBRIDS = ("hybrid_stem", "hybrid_r_1_2")


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


def load(name):
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def to_ours(golden, prefix):
    """The tensors under `prefix` by our names, one entry per layer: "blocks/0/norm1/scale"."""
    trunk = "stem" if "params/Transformer/encoder_norm/scale" in golden else "trunk"
    tensors = {}
    for name, array in golden.items():
        if name.startswith(prefix + "/"):
            ours = name.removeprefix(prefix + "/")
            for pattern, replacement in RENAMES:
                ours = re.sub(pattern, replacement, ours)
            is_norm = array.shape[:3] == (1, 1, 1) and "conv" not in ours and array.ndim == 4
            squeeze = is_norm and re.search("scale|bias", ours)
            tensors[ours.replace("TRUNK", trunk)] = array[0, 0, 0] if squeeze else array
    return tensors


def unstack(tree):
    """A nested state as a flat dictionary, one entry per layer of `blocks`."""
    tensors = {}
    for path, leaf in nnx.to_flat_state(tree):
        name, array = "/".join(map(str, path)), np.asarray(leaf[...])
        if path[0] == "blocks":
            rest = name.removeprefix("blocks/")
            tensors |= {f"blocks/{layer}/{rest}": row for layer, row in enumerate(array)}
        else:
            tensors[name] = array
    return tensors


def golden_model(name):
    """The model with the golden file's parameters: (graphdef, state, the file's content)."""
    golden = load(name)
    graphdef, state = nnx.split(abstract_model(MODELS[name][0], **MODELS[name][1]))
    tensors = to_ours(golden, "params")

    def fill(path, leaf):
        name = "/".join(map(str, path))
        if path[0] == "blocks":
            rest = name.removeprefix("blocks/")
            layers = [tensors.pop(f"blocks/{layer}/{rest}") for layer in range(leaf.shape[0])]
            array = np.stack(layers)
        else:
            array = tensors.pop(name)
        assert array.shape == leaf.shape, name
        return leaf.replace(jnp.asarray(array))

    flat = [(path, fill(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    assert not tensors, "tensors of the file that the model does not have"
    return graphdef, nnx.from_flat_state(flat), golden


def softmax_loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@functools.partial(jax.jit, static_argnums=0)
def evaluate(graphdef, state, images, labels):
    """The loss, the logits, the representation, and the gradients."""

    def loss(state):
        outputs = nnx.merge(graphdef, state).outputs(images)
        return softmax_loss(outputs["logits"], labels), (outputs["logits"], outputs)

    (value, aux), gradients = jax.value_and_grad(loss, has_aux=True)(state)
    return value, *aux, gradients


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_equal_the_reference(name):
    graphdef, state, golden = golden_model(name)
    value, logits, intermediates, gradients = evaluate(
        graphdef, state, golden["images"], golden["labels"]
    )
    atol, gradient_rtol = (5e-6, 1e-5) if name.startswith("bit_") else (1e-5, 1e-4)
    if name.endswith("lowvar"):
        atol = 1e-4 * np.abs(golden["logits"]).max()
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=atol)
    np.testing.assert_allclose(value, golden["softmax_loss"], rtol=0, atol=atol)
    if "sigmoid_loss" in golden:
        sigmoid_loss = optax.sigmoid_binary_cross_entropy(
            logits, jax.nn.one_hot(golden["labels"], logits.shape[-1])
        )
        np.testing.assert_allclose(
            sigmoid_loss.sum(-1).mean(), golden["sigmoid_loss"], rtol=1e-5, atol=atol
        )
    if "pre_logits" in golden:
        np.testing.assert_allclose(
            intermediates["pre_logits"], golden["pre_logits"], rtol=0, atol=atol
        )
    reference = to_ours(golden, "grads")
    mismatch = worst_mismatch(gradients, reference, gradient_rtol)
    if "stem/conv_root/kernel" in reference or "trunk/conv_root/kernel" in reference:
        # A ReLU's input within rounding of zero has a gradient or none, as the processor rounds.
        nudged = iter(range(NUDGES))
        while mismatch[0] > 1 and (seed := next(nudged, None)) is not None:
            noise = np.random.default_rng(seed).normal(scale=1e-6, size=golden["images"].shape)
            images = golden["images"] + np.float32(noise)
            *_, gradients = evaluate(graphdef, state, images, golden["labels"])
            mismatch = worst_mismatch(gradients, reference, gradient_rtol)
    assert mismatch[0] <= 1, mismatch


NUDGES = 8


def worst_mismatch(gradients, reference, rtol):
    """The largest difference in units of the tolerance, and the parameter's name."""
    ours = unstack(gradients)
    assert ours.keys() == reference.keys()
    return max(
        (np.abs(ours[key] - expected).max() / (rtol * np.abs(expected).max() + 1e-7), key)
        for key, expected in reference.items()
    )


def make_update(optimizer):
    if optimizer == "sgd":
        rate = optax.warmup_cosine_decay_schedule(0, 0.05, 3, 12)
        update = optax.sgd(rate, momentum=0.9)
    else:
        decay = optax.linear_schedule(3e-3, 1e-5, 8)
        rate = optax.join_schedules([optax.linear_schedule(0, 3e-3, 4), decay], [4])
        update = optax.adamw(rate, weight_decay=0.1, mask=is_kernel)
    return optax.chain(optax.clip_by_global_norm(1.0), update)


def is_kernel(state):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "kernel" in jax.tree_util.keystr(path), state
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_hybrids_train_as_the_reference(name, optimizer):
    graphdef, state, golden = golden_model(name)
    update = make_update(optimizer)

    @jax.jit
    def apply(state, moments, gradients):
        changes, moments = update.update(gradients, moments, state)
        return optax.apply_updates(state, changes), moments

    moments, losses = jax.jit(update.init)(state), []
    for _ in range(12):
        value, *_, gradients = evaluate(graphdef, state, golden["images"], golden["labels"])
        state, moments = apply(state, moments, gradients)
        losses.append(value)
    np.testing.assert_allclose(losses, golden[f"trajectory_{optimizer}/loss"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(
        state["head"]["kernel"][...], golden[f"trajectory_{optimizer}/head_kernel"], atol=1e-5
    )


def test_sincos_2d_equals_the_reference():
    for key, expected in load("sincos2d").items():
        rows, columns, width = map(int, key.split("_"))
        np.testing.assert_allclose(sincos_2d(rows, columns, width), expected, rtol=0, atol=1e-6)
