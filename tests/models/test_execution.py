"""Scan, remat and bfloat16 change how a model runs, not what it computes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.models.filled import fill, filled_model, predict, random_images
from vit_jax.errors import ConfigError
from vit_jax.models import abstract_model
from vit_jax.models.remat import DOTS, LAYERS, NAMES, is_remat, remat_policy

VIT = {"width": 32, "depth": 3, "mlp_width": 64, "num_heads": 2, "num_classes": 10}
RESNET = {"image_size": 24, "width_factor": 0.5, "stage_depths": (1, 1), "num_classes": 10}
SHAPES = {  # Tokens per image: 16, 257 (as ViT-H/14), 50 (as ViT-B/32).
    "24x40": {**VIT, "image_size": (24, 40), "patch_size": 8},
    "257 tokens": {**VIT, "image_size": 224, "patch_size": 14},
    "50 tokens": {**VIT, "image_size": 224, "patch_size": 32},
}
FAMILIES = {
    "ViT-B/16": {**VIT, "image_size": (24, 40), "patch_size": 8},
    "R50+ViT-B/16": {**VIT, "image_size": (24, 40), "stem_depths": (1,), "patch_size": 2}
    | {"stem_width_factor": 0.5},
    "BiT-R50x1": RESNET,
    "BiT-v1-R50x1": RESNET,
    "Axial-ViT-B/16": {**VIT, "image_size": (24, 40), "patch_size": 8},
    "AxialResNet50": RESNET,
    "Mixer-B/16": {"width": 32, "depth": 3, "mlp_width": 64, "token_mlp_width": 16}
    | {"image_size": (24, 40), "patch_size": 8, "num_classes": 10},
}
CHECKPOINT = ("checkpoint", "remat", "remat2")  # JAX has renamed it more than once.


@functools.partial(jax.jit, static_argnums=0)
def logits_and_gradients(graphdef, state, images, key=None):
    labels = jnp.arange(len(images))

    def loss(state):
        logits = nnx.merge(graphdef, state)(images, key=key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    gradients, logits = jax.grad(loss, has_aux=True)(state)
    return logits, gradients


def run(name, options, **execution):
    """Logits and gradients of one set of parameters, run in one way."""
    model = fill(abstract_model(name, **options, **execution))
    return logits_and_gradients(*nnx.split(model), random_images(model.options, batch_size=4))


def assert_equal(first, second):
    np.testing.assert_allclose(first[0], second[0], rtol=0, atol=1e-5)
    for one, other in zip(*map(jax.tree.leaves, (first[1], second[1])), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(one).max() + 1e-7)


def assert_close_to_spread(logits, reference, tolerance=3e-2):
    """Close to the reference, relative to the standard deviation of its logits."""
    assert logits.dtype == jnp.float32
    assert np.abs(logits - reference).max() < tolerance * np.std(reference)


@pytest.mark.parametrize(
    "shape", ["24x40", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SHAPES][1:])]
)
def test_scan_with_remat_in_float32_and_bfloat16(shape):
    options = SHAPES[shape]
    reference = predict(filled_model("ViT-B/16", **options), random_images_of(options))
    for dtype in ("float32", "bfloat16"):
        logits, gradients = run("ViT-B/16", options, dtype=dtype, remat="full")
        if dtype == "float32":
            np.testing.assert_allclose(logits, reference, rtol=0, atol=1e-5)
        assert_close_to_spread(logits, reference)
        for leaf in jax.tree.leaves(gradients):
            assert leaf.dtype == jnp.float32
            assert np.isfinite(leaf).all()


def random_images_of(options):
    return random_images(abstract_model("ViT-B/16", **options).options, batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution",
    [
        {"remat": "full"},
        {"remat": "dots"},
        {"remat": "dots", "scan_unroll": 3},
        {"scan_unroll": 2},
        {"scan_unroll": 100},
    ],
    ids=str,
)
def test_remat_and_unrolling_keep_logits_and_gradients(execution):
    options = SHAPES["24x40"]
    assert_equal(run("ViT-B/16", options), run("ViT-B/16", options, **execution))


def equations(jaxpr, primitive):
    """All equations of one primitive in a traced program, those within others included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner, primitive)


def trace(name, options, **execution):
    """The program of a model's gradients."""
    model = abstract_model(name, **options, **execution)
    images = random_images(model.options)
    return jax.make_jaxpr(logits_and_gradients, static_argnums=0)(*nnx.split(model), images).jaxpr


def kept_for_the_backward_pass(name, remat):
    """The number of values that the forward scan over blocks gives to the backward one."""
    forward, backward = equations(trace(name, FAMILIES[name], remat=remat), "scan")
    assert not forward.params["reverse"]
    assert backward.params["reverse"]
    stacked = (FAMILIES[name]["depth"],)  # What is carried on instead begins with two images.
    avals = [variable.aval for variable in forward.outvars]
    return sum(aval.size for aval in avals if aval.shape[:1] == stacked)


WIDTHS = {"query": 32, "key": 32, "value": 32, "out": 32, "dense1": 64, "gate": 64, "dense2": 32}


@pytest.mark.parametrize("kept", [*LAYERS, "query+key+value+out", "dots"])
def test_the_layers_named_are_kept_and_no_other(kept):
    """But for the result of the last, which nothing in the block's backward pass reads."""
    names = set(LAYERS if kept == DOTS else kept.split("+")) - {"dense2"}
    options = FAMILIES["ViT-B/16"] | {"mlp": "swiglu"}
    forward, _ = equations(trace("ViT-B/16", options, remat=kept), "scan")
    shapes = [(*v.aval.shape[1:3], math.prod(v.aval.shape[3:])) for v in forward.outvars[1:]]
    expected = [(2, 16, 32), *((2, 16, WIDTHS[name]) for name in names)]
    assert sorted(shapes) == sorted(expected)


def test_convolutions_are_kept_by_their_name_and_by_dots():
    convolution = jax.lax.conv_general_dilated_p
    for remat, kept in {"dots": True, "convolution+query": True, "query": False}.items():
        assert remat_policy(remat)(convolution) == kept
        assert not remat_policy(remat)(jax.lax.tanh_p)
        assert not remat_policy(remat)(jax.lax.dot_general_p, dimension_numbers=((), ()))


@pytest.mark.parametrize(
    ("remat", "known"),
    [
        *((name, True) for name in ("auto", "none", "full", "dots", *NAMES, "+".join(NAMES))),
        *((name, False) for name in ("", "+", "query+", "query+query", "query+dots", "Query")),
    ],
)
def test_names_are_known_and_said_once(remat, known):
    assert is_remat(remat) == known
    if not known:
        with pytest.raises(
            ConfigError, match=r"model\.remat=.*must be one of auto, none, full, dots"
        ):
            abstract_model("ViT-B/16", **FAMILIES["ViT-B/16"], remat=remat)


@pytest.mark.parametrize(  # All scan their blocks by one function.
    "name", ["ViT-B/16", "Mixer-B/16", pytest.param("Axial-ViT-B/16", marks=pytest.mark.slow)]
)
def test_remat_keeps_less_for_the_backward_pass(name):
    full, dots, none = (
        kept_for_the_backward_pass(name, remat) for remat in ("full", "dots", "none")
    )
    options = abstract_model(name, **FAMILIES[name]).options
    block_input = 2 * options.num_tokens * options.width  # Of two images.
    assert full == options.depth * block_input
    assert full < dots < none


def test_a_cpu_needs_less_memory_with_remat_in_a_loop():
    """As `execution.choose_scan_unroll` has it; without a loop its compiler undoes remat."""
    options = FAMILIES["ViT-B/16"] | {"depth": 6}

    def temporaries(**execution):
        model = abstract_model("ViT-B/16", **options, **execution)
        arguments = *nnx.split(model), random_images(model.options)
        compiled = logits_and_gradients.lower(*arguments).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    kept = temporaries(remat="none", scan_unroll=6)
    assert temporaries(remat="dots", scan_unroll=1) < kept / 2
    assert temporaries(remat="full", scan_unroll=1) < kept / 3


@pytest.mark.parametrize("remat", ["none", "dots"])
def test_of_a_bfloat16_model_no_float32_tokens_are_kept(remat):
    """Nor hidden activations: of each row a norm keeps two numbers, and the softmax its weights."""
    options = FAMILIES["ViT-B/16"]
    traced = trace("ViT-B/16", options, remat=remat, dtype="bfloat16")
    kept = [variable.aval for variable in next(equations(traced, "scan")).outvars]
    wide = [aval for aval in kept if aval.shape[-1:] in ((32,), (64,)) and aval.ndim > 2]
    assert {aval.dtype for aval in wide} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize(("asked", "unroll"), [(1, 1), (2, 2), (100, 3)])
def test_the_scan_is_unrolled_as_asked(asked, unroll):
    scans = equations(trace("ViT-B/16", SHAPES["24x40"], scan_unroll=asked), "scan")
    assert [scan.params["unroll"] for scan in scans] == [unroll, unroll]


def forward(graphdef, state, images):
    return nnx.merge(graphdef, state)(images)


@pytest.mark.parametrize(
    ("name", "num_units"),
    [("BiT-R50x1", 2), ("BiT-v1-R50x1", 2), ("AxialResNet50", 2), ("R50+ViT-B/16", 1)],
)
def test_remat_recomputes_each_unit_of_a_resnet(name, num_units):
    for remat in ("none", "full", "dots", "convolution"):
        policy = remat_policy(remat)
        model = abstract_model(name, **FAMILIES[name], remat=remat)
        graphdef, state = nnx.split(model)
        program = jax.make_jaxpr(forward, static_argnums=0)
        top = program(graphdef, state, random_images(model.options)).jaxpr.eqns
        units = [equation for equation in top if equation.primitive.name in CHECKPOINT]
        assert [unit.params["policy"] for unit in units] == [policy] * num_units * (
            policy is not None
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_every_family_keeps_them_under_remat(name, remat):
    assert_equal(run(name, FAMILIES[name]), run(name, FAMILIES[name], remat=remat))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_runs_in_bfloat16(name):
    images = random_images(abstract_model(name, **FAMILIES[name]).options)
    reference = predict(filled_model(name, **FAMILIES[name]), images)
    bfloat16 = predict(filled_model(name, **FAMILIES[name], dtype="bfloat16"), images)
    # Its attention averages, unscaled by sqrt(d), and then normalises what is left.
    assert_close_to_spread(bfloat16, reference, 1e-1 if name == "AxialResNet50" else 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViT-B/32", {}),
        ("ViT-H/14", {"depth": 4}),
        ("ViT-B/16", {"image_size": (24, 40), "patch_size": 8}),
    ],
)
def test_full_width_in_bfloat16(name, options):
    images = random_images(abstract_model(name, **options).options)
    reference = predict(filled_model(name, **options, remat="full"), images)
    bfloat16 = predict(filled_model(name, **options, remat="full", dtype="bfloat16"), images)
    assert_close_to_spread(bfloat16, reference)


def test_remat_recomputes_the_same_dropout():
    options = {**SHAPES["24x40"], "dropout_rate": 0.3, "stochastic_depth_rate": 0.3}
    runs = []
    for remat in ("none", "full"):
        model = fill(abstract_model("ViT-B/16", **options, remat=remat))
        images = random_images(model.options, batch_size=4)
        runs.append(logits_and_gradients(*nnx.split(model), images, jax.random.key(0)))
    assert_equal(*runs)


MAPS = [(2, 6, 6, 32), (2, 6, 6, 128), (2, 3, 3, 256)]
SEEN_BY_THE_HOOK = {  # After the stem, the embedding and each unit; once in the scanned block.
    "ViT-B/16": [(2, 16, 32)] * 2,
    "R50+ViT-B/16": [(2, 6, 10, 32), (2, 6, 10, 128), (2, 16, 32), (2, 16, 32)],
    "BiT-R50x1": MAPS,
    "BiT-v1-R50x1": MAPS,
    "Axial-ViT-B/16": [(2, 15, 32)] * 2,
    "AxialResNet50": MAPS,
    "Mixer-B/16": [(2, 15, 32)] * 2,
}


@pytest.mark.parametrize("name", SEEN_BY_THE_HOOK)
def test_activations_pass_through_the_hook(name):
    graphdef, state = nnx.split(abstract_model(name, **FAMILIES[name]))
    options = nnx.merge(graphdef, state).options
    shapes = []

    def constrain(x):
        shapes.append(x.shape)
        return x

    def call(state, images):
        return nnx.merge(graphdef, state)(images, constrain=constrain)

    jax.eval_shape(call, state, random_images(options))
    assert shapes == SEEN_BY_THE_HOOK[name]


def softmaxes(jaxpr):
    """The types of all that is exponentiated in a traced program."""
    return {equation.invars[0].aval.dtype for equation in equations(jaxpr, "exp")}


@pytest.mark.parametrize("name", ["ViT-B/16", "Axial-ViT-B/16", "AxialResNet50"])
def test_the_softmax_of_a_bfloat16_model_is_in_float32(name):
    model = abstract_model(name, **FAMILIES[name], dtype="bfloat16")
    program = jax.make_jaxpr(forward, static_argnums=0)
    traced = program(*nnx.split(model), random_images(model.options))
    assert softmaxes(traced.jaxpr) == {jnp.dtype("float32")}
