"""`model.intermediates`: what it returns for each family, and that nothing unasked is computed."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.models.filled import filled_model, intermediates, predict, random_images
from vit_jax.errors import ConfigError

TINY = {
    "width": 16,
    "depth": 2,
    "mlp_width": 24,
    "num_heads": 2,
    "num_classes": 3,
    "image_size": (8, 12),
    "patch_size": 4,
}
RESNET = {"image_size": (32, 48), "width_factor": 0.5, "stage_depths": (1, 1), "num_classes": 3}
MAPS = [(2, 8, 12, 128), (2, 4, 6, 256)]
MODELS = {  # name: options, patch embeddings, block outputs
    "ViT-B/16": ({**TINY, "num_registers": 2}, (2, 6, 16), [(2, 9, 16)] * 2),
    "R50+ViT-B/16": (
        {**TINY, "image_size": (32, 48), "patch_size": 2, "stem_depths": (1,)}
        | {"stem_width_factor": 0.5},
        (2, 24, 16),
        [(2, 25, 16)] * 2,
    ),
    "BiT-R50x1": (RESNET, (2, 8, 12, 32), MAPS),
    "BiT-v1-R50x1": (RESNET, (2, 8, 12, 32), MAPS),
    "Axial-ViT-B/16": (TINY, (2, 6, 16), [(2, 6, 16)] * 2),
    "AxialResNet50": (RESNET, (2, 8, 12, 32), MAPS),
    "Mixer-B/16": (
        {"width": 16, "depth": 2, "mlp_width": 24, "token_mlp_width": 8, "num_classes": 3}
        | {"image_size": (8, 12), "patch_size": 4},
        (2, 6, 16),
        [(2, 6, 16)] * 2,
    ),
}
WITHOUT_ATTENTION = ("BiT-R50x1", "BiT-v1-R50x1", "Mixer-B/16")


@pytest.mark.parametrize("name", MODELS)
def test_every_family_has_them(name):
    options, patches, blocks = MODELS[name]
    model = filled_model(name, **options)
    images = random_images(model.options)
    values = intermediates(model, images, "patch_embeddings", "block_outputs", "pre_logits")
    assert values["patch_embeddings"].shape == patches
    assert [output.shape for output in values["block_outputs"]] == blocks
    logits = values["pre_logits"] @ model.head.kernel[...] + model.head.bias[...]
    np.testing.assert_allclose(predict(model, images), logits, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ViT-B/16", [(2, 2, 9, 9)] * 2),
        ("R50+ViT-B/16", [(2, 2, 25, 25)] * 2),
        ("Axial-ViT-B/16", [(2, 2, 2, 3, 3), (2, 3, 2, 2, 2)] * 2),
        ("AxialResNet50", [(2, 8, 8, 12, 12), (2, 12, 8, 8, 8)] * 2),
    ],
)
def test_attention_weights_sum_to_one(name, shapes):
    model = filled_model(name, **MODELS[name][0])
    values = intermediates(model, random_images(model.options), "attention_weights")
    arrays = jax.tree.leaves(list(values["attention_weights"]))
    assert [array.shape for array in arrays] == shapes
    for array in arrays:
        assert array.dtype == np.float32
        np.testing.assert_allclose(array.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("name", WITHOUT_ATTENTION)
def test_models_without_attention_say_so(name):
    model = filled_model(name, **MODELS[name][0])
    with pytest.raises(ConfigError, match=r"'attention_weights': .* has none of that name; it has"):
        model.intermediates(random_images(model.options), "attention_weights")


def test_block_outputs_and_weights_are_those_of_the_block():
    model = filled_model("ViT-B/16", **MODELS["ViT-B/16"][0])
    images = random_images(model.options)
    values = intermediates(model, images, "block_outputs", "attention_weights")
    graphdef, stacked = nnx.split(model.blocks)
    second = nnx.merge(graphdef, jax.tree.map(lambda array: array[1], stacked))
    output, weights = jax.jit(lambda x: second(x, None, None))(values["block_outputs"][0])
    np.testing.assert_allclose(output, values["block_outputs"][1], atol=1e-5)
    np.testing.assert_allclose(weights, values["attention_weights"][1], atol=1e-6)


def test_nothing_is_kept_unless_asked():
    """The scan over blocks gives out one array per captured name, beside the tokens."""
    model = filled_model("ViT-B/16", **TINY)
    images = random_images(model.options)

    def scan_outputs(*names):
        program = jax.make_jaxpr(lambda x: model.intermediates(x, *names))(images)
        scans = [equation for equation in program.eqns if equation.primitive.name == "scan"]
        return [variable.aval.shape for variable in scans[0].outvars]

    assert scan_outputs("pre_logits") == [(2, 7, 16)]
    assert scan_outputs("block_outputs") == [(2, 7, 16), (2, 2, 7, 16)]
    assert (2, 2, 2, 7, 7) in scan_outputs("attention_weights")


def test_images_of_another_size_are_refused():
    model = filled_model("ViT-B/16", **TINY)
    with pytest.raises(ConfigError, match=r"\(8, 8, 3\) given to a model for \(8, 12, 3\)"):
        model(np.zeros((1, 8, 8, 3), np.float32))
