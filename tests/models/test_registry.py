"""Every registered name: its parameters, multiply-accumulates and a small twin that learns."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.models.filled import filled_model, random_images
from vit_jax.errors import ConfigError
from vit_jax.models import abstract_model, count_parameters, list_models, model_options
from vit_jax.models.registry import find_architecture

# At 224 pixels with 1,000 classes. ViTs, hybrids and ResNets: published or counted from the
# reference code. Axial-ViTs: `axial_vit_parameters` below. AxialResNet50: from its shapes.
PARAMETERS = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/32": 22_878_952,
    "ViT-S/16": 22_050_664,
    "ViT-b/32": 22_878_952,
    "ViT-B/32": 88_224_232,
    "ViT-B/16": 86_567_656,
    "ViT-B/8": 86_576_872,
    "ViT-L/32": 306_535_400,
    "ViT-L/16": 304_326_632,
    "ViT-H/14": 632_045_800,
    "ViT-g/14": 1_012_611_432,
    "ViT-G/14": 1_844_440_680,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/32": 110_945_832,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    "R50+ViT-L/16": 316_483_624,
    "BiT-R50x1": 25_549_352,
    "BiT-R50x2": 97_988_712,
    "BiT-R50x3": 217_319_080,
    "BiT-R101x1": 44_541_480,
    "BiT-R101x3": 387_934_888,
    "BiT-R152x1": 60_185_128,
    "BiT-R152x2": 236_335_208,
    "BiT-R152x4": 936_533_224,
    "BiT-R200x3": 568_633_000,
    "BiT-v1-R50x1": 25_557_032,
    "BiT-v1-R50x2": 98_004_072,
    "BiT-v1-R50x3": 217_342_120,
    "BiT-v1-R101x1": 44_549_160,
    "BiT-v1-R101x3": 387_957_928,
    "BiT-v1-R152x1": 60_192_808,
    "BiT-v1-R152x2": 236_350_568,
    "BiT-v1-R152x4": 936_563_944,
    "BiT-v1-R200x3": 568_656_040,
    "Axial-ViT-B/32": 173_277_160,
    "Axial-ViT-B/16": 171_620_584,
    "AxialResNet50": 19_373_640,
    "Mixer-B/32": 60_293_428,
    "Mixer-B/16": 59_880_472,
    "Mixer-L/16": 208_196_168,
}

# What else the same tables give: (name, image size, classes, representation) -> parameters.
FURTHER_PARAMETERS = {
    # By hand, from the sizes in Big Vision's models/vit.py.
    ("ViT-M/16", 224, 1000, 0): 38_837_736,
    ("ViT-So400m/14", 224, 1000, 0): 413_597_656,
    ("ViT-e/14", 224, 1000, 0): 3_807_214_312,
    ("ViT-Ti/16", 384, 1000, 0): 5_790_376,
    ("ViT-S/16", 384, 21843, 384): 30_368_979,
    ("ViT-B/32", 384, 18291, 768): 102_184_563,
    ("ViT-B/16", 224, 0, 0): 85_798_656,
    ("ViT-B/16", 224, 21843, 768): 103_186_515,
    ("ViT-L/16", 512, 18291, 1024): 323_947_379,
    ("ViT-H/14", 518, 21843, 0): 660_170_323,
    ("ViT-H/14", 392, 1000, 0): 632_721_640,
    ("R50+ViT-B/16", 384, 1000, 0): 98_950_952,
    ("R50+ViT-L/16", 224, 0, 0): 315_458_624,
    ("R50+ViT-L/32", 384, 1000, 0): 329_092_136,
    ("BiT-R50x1", 224, 21843, 0): 68_256_659,
    ("BiT-R152x4", 224, 21843, 0): 1_107_299_923,
}

# (name, image size) -> GMACs with 1,000 classes.
GMACS = {
    ("ViT-Ti/16", 224): 1.25,
    ("ViT-Ti/16", 384): 4.68,
    ("ViT-S/32", 224): 1.14,
    ("ViT-S/16", 224): 4.60,
    ("ViT-S/16", 384): 15.49,
    ("ViT-B/32", 224): 4.41,
    ("ViT-B/32", 384): 13.04,
    ("ViT-B/16", 224): 17.56,
    ("ViT-B/16", 384): 55.48,
    ("ViT-B/8", 224): 78.15,
    ("ViT-L/32", 224): 15.38,
    ("ViT-L/32", 384): 45.28,
    ("ViT-L/16", 224): 61.55,
    ("ViT-L/16", 384): 191.07,
    ("ViT-L/16", 512): 361.99,
    ("ViT-H/14", 224): 167.30,
    ("ViT-H/14", 392): 544.95,
    ("ViT-H/14", 518): 1016.72,
    ("ViT-g/14", 224): 267.03,
    ("ViT-G/14", 224): 483.75,
    ("BiT-R50x1", 224): 4.09,
    ("BiT-R50x2", 224): 16.12,
    ("BiT-R50x3", 224): 36.08,
    ("BiT-R101x1", 224): 7.80,
    ("BiT-R101x3", 224): 69.49,
    ("BiT-R152x1", 224): 11.51,
    ("BiT-R152x2", 224): 45.81,
    ("BiT-R152x4", 224): 182.78,
    ("BiT-R200x3", 224): 134.35,
}

# GMACs at 224 pixels with JFT's 18,291 classes.
JFT_GMACS = {
    "ViT-B/32": 4.42,
    "ViT-B/16": 17.58,
    "ViT-L/32": 15.40,
    "ViT-L/16": 61.57,
    "ViT-H/14": 167.32,
    "R50+ViT-B/32": 8.47,
    "R50+ViT-B/16": 21.55,
    "R50+ViT-L/32": 19.43,
    "R50+ViT-L/16": 65.56,
}

# Table 6 of the paper: (name, epochs on JFT-300M) -> exaFLOPs, and the tolerance of its formula.
EXAFLOPS = {
    ("ViT-B/32", 7): (55, 0.025),
    ("ViT-B/16", 7): (224, 0.025),
    ("ViT-L/32", 7): (196, 0.025),
    ("ViT-L/16", 7): (783, 0.025),
    ("ViT-L/16", 14): (1567, 0.025),
    ("ViT-H/14", 14): (4262, 0.025),
    ("BiT-R50x1", 7): (50, 0.05),
    ("BiT-R50x2", 7): (199, 0.05),
    ("BiT-R101x1", 7): (96, 0.05),
    ("BiT-R152x1", 7): (141, 0.05),
    ("BiT-R152x2", 7): (563, 0.05),
    ("BiT-R152x2", 14): (1126, 0.05),
    ("BiT-R200x3", 14): (3306, 0.05),
    ("R50+ViT-B/32", 7): (106, 0.03),
    ("R50+ViT-B/16", 7): (274, 0.03),
    ("R50+ViT-L/32", 7): (246, 0.03),
    ("R50+ViT-L/16", 7): (859, 0.03),
    ("R50+ViT-L/16", 14): (1668, 0.03),
}


def twin_options(name):
    """The name's own options, scaled down: its patches, heads, number of stages and widths differ."""
    own = find_architecture(name).defaults
    options = {"num_classes": 3, "image_size": 32, **own}
    for depths in {"stem_depths", "stage_depths"} & own.keys():
        options[depths] = (1,) * len(own[depths])
    if "width_factor" in own:
        options["width_factor"] = own["width_factor"] / 2
    if "stem_depths" in own:
        options |= {"image_size": 64, "stem_width_factor": 0.5}
    elif "patch_size" in own:
        options["image_size"] = 2 * own["patch_size"]
    if "width" in own:
        width = 8 * own["num_heads"] if "num_heads" in own else own["width"] // 32
        hidden = {"mlp_width", "token_mlp_width"} & own.keys()
        options |= {key: width * own[key] // own["width"] for key in hidden}
        options |= {"depth": 2, "width": width}
    return options


def most_slow(names, fast):
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


ONE_OF_EACH_FAMILY = (
    *("ViT-H/14", "R+ViT-Ti/16", "R50+ViT-L/16", "BiT-R50x2", "BiT-v1-R50x3", "Axial-ViT-B/16"),
    *("AxialResNet50", "Mixer-L/16"),
)


@functools.cache
def full_size(name):
    """The named model, as it would run on an accelerator; shapes only."""
    return nnx.split(abstract_model(name, dtype="bfloat16"))


@pytest.mark.parametrize("name", list_models())
def test_full_size_has_the_published_number_of_parameters(name):
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(full_size(name)[1])]
    assert sum(sizes) == PARAMETERS[name]


def test_the_table_has_no_name_that_is_gone():
    assert list(PARAMETERS) == list_models()


@pytest.mark.parametrize("name", most_slow(list_models(), ONE_OF_EACH_FAMILY))
def test_full_size_maps_images_to_float32_logits(name):
    graphdef, state = full_size(name)
    images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
    logits = jax.eval_shape(lambda state, x: nnx.merge(graphdef, state)(x), state, images)
    assert (logits.shape, logits.dtype) == ((2, 1000), jnp.float32)


@pytest.mark.parametrize(("name", "image_size", "classes", "representation"), FURTHER_PARAMETERS)
def test_sizes_and_heads_add_the_published_number_of_parameters(
    name, image_size, classes, representation
):
    options = {"representation_size": representation} if representation else {}
    count = count_parameters(name, image_size=image_size, num_classes=classes, **options)
    assert count == FURTHER_PARAMETERS[name, image_size, classes, representation]


@pytest.mark.parametrize(("name", "image_size"), GMACS)
def test_macs_equal_the_published_ones(name, image_size):
    gmacs = model_options(name, image_size=image_size).macs() / 1e9
    published = GMACS[name, image_size]
    assert gmacs == pytest.approx(published, rel=1e-3, abs=0.005)  # 0.005: they are rounded.


@pytest.mark.parametrize("name", JFT_GMACS)
def test_macs_with_the_head_of_jft_equal_the_published_ones(name):
    gmacs = model_options(name, num_classes=18291).macs() / 1e9
    assert gmacs == pytest.approx(JFT_GMACS[name], rel=1e-3, abs=0.005)


@pytest.mark.parametrize(("name", "epochs"), EXAFLOPS)
def test_exaflops_of_table_6(name, epochs):
    images = 303e6 * epochs
    exaflops = 6 * model_options(name, num_classes=18291).macs() * images / 1e18
    published, tolerance = EXAFLOPS[name, epochs]
    assert exaflops == pytest.approx(published, rel=tolerance)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradients(graphdef, state, images, labels):
    def loss(state):
        logits = nnx.merge(graphdef, state)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return jax.value_and_grad(loss)(state)


FAST_TWINS = ("ViT-Ti/16", "R+ViT-Ti/16", "Axial-ViT-B/32", "Mixer-B/32")


@pytest.mark.parametrize("name", most_slow(list_models(), FAST_TWINS))
def test_a_small_twin_has_a_gradient_for_every_parameter(name):
    model = filled_model(name, **twin_options(name))
    images, labels = random_images(model.options), np.array([0, 2])
    loss, gradients = loss_and_gradients(*nnx.split(model), images, labels)
    assert np.isfinite(loss)
    for path, leaf in nnx.to_flat_state(gradients):
        assert np.isfinite(leaf[...]).all(), path
        without = path[-2:] == ("key", "bias")  # Softmax does not see what all keys share.
        assert without or np.abs(leaf[...]).max() > 0, path


def axial_vit_parameters(patch_size, width=768, mlp_width=3072, depth=12):
    attention, norms = 4 * (width**2 + width), 4 * width
    mlp = 2 * width * mlp_width + mlp_width + width
    embedding = (3 * patch_size**2 + 1) * width + (224 // patch_size) ** 2 * width
    return embedding + 2 * depth * (attention + mlp + norms) + 2 * width + 1000 * (width + 1)


@pytest.mark.parametrize("patch_size", [16, 32])
def test_an_axial_vit_has_two_vit_blocks_a_block_and_no_class_token(patch_size):
    assert PARAMETERS[f"Axial-ViT-B/{patch_size}"] == axial_vit_parameters(patch_size)


@pytest.mark.parametrize(
    "shape",
    [
        {"depth": 64},
        {"width": 2048, "mlp_width": 2048},
        {"mlp_width": 8192},
        {"patch_size": 8},
        {"patch_size": (32, 16), "image_size": (64, 256)},
    ],
    ids=str,
)
def test_shape_scaling_by_overrides(shape):
    """Figure 8: each dimension around 8 layers, width 1024, MLP 2048, patch 32."""
    base = {"depth": 8, "width": 1024, "mlp_width": 2048, "patch_size": 32, "image_size": 224}
    options = {**base, **shape}
    complete = model_options("ViT-L/32", **options)
    width, mlp, (rows, columns) = options["width"], options["mlp_width"], complete.patch_size
    tokens = complete.num_tokens
    block = 4 * width**2 + 2 * width * mlp + 9 * width + mlp
    expected = (3 * rows * columns + 1) * width + (1 + tokens) * width + options["depth"] * block
    expected += 2 * width + 1000 * (width + 1)
    assert count_parameters("ViT-L/32", **options) == expected


def test_any_patch_size_of_a_named_size_is_a_name():
    assert model_options("ViT-B/4") == dataclasses.replace(
        model_options("ViT-B/16"), patch_size=(4, 4)
    )


def test_an_unknown_name_or_option_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'ViT-B16' is unknown; the nearest: .*ViT-B/16"):
        model_options("ViT-B16")
    with pytest.raises(ConfigError, match=r"R50x1 has no such option; did you mean model.width_f"):
        model_options("BiT-R50x1", width=3)


def test_an_abstract_model_is_nobody_elses():
    one, other = (abstract_model("ViT-Ti/16", depth=1) for _ in range(2))
    one.class_names, one.head.kernel = ("a",), None
    assert one.name == other.name
    again = abstract_model("ViT-Ti/16", depth=1)
    for model in (other, again):
        assert not getattr(model, "class_names", ())
        assert model.head.kernel.shape == (192, 1000)


def test_an_abstract_model_is_of_the_context_that_it_is_made_in():
    def kinds():
        state = nnx.split(abstract_model("ViT-Ti/8", image_size=16, depth=1))[1]
        return {(leaf.dtype, leaf.sharding) for leaf in jax.tree.leaves(state)}

    with jax.set_mesh(jax.make_mesh((1,), ("x",))):
        assert all(sharding is not None for _, sharding in kinds())
    with jax.enable_x64(True):
        kinds()
    assert kinds() == {(jnp.dtype("float32"), None)}
