"""Blocks of the axial models and the Mixer against NumPy, written from the papers' equations."""

import math

import numpy as np
import pytest
from flax import nnx

from tests.models.filled import filled_model, flat_parameters, intermediates, random_images

SIZE = {"depth": 1, "num_classes": 3, "image_size": (8, 12), "patch_size": 4}
VIT = {**SIZE, "width": 16, "mlp_width": 24, "num_heads": 2}


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, parameters):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * parameters["scale"] + parameters["bias"]


def dense(x, parameters):
    return x @ parameters["kernel"] + parameters["bias"]


def mlp(x, parameters):
    return dense(gelu(dense(x, parameters["dense1"])), parameters["dense2"])


def turned(x, angles):
    """Pairs of features as complex numbers, turned."""
    half = x.shape[-1] // 2
    numbers = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([numbers.real, numbers.imag], axis=-1)


def attention(x, parameters, memory=None, angles=None):
    """From a sequence [S, D] to itself or another, head by head: the values and the weights."""
    memory = x if memory is None else memory
    heads, weights = [], []
    for head in range(2):
        query, key, value = (
            source @ parameters[name]["kernel"][:, head] + parameters[name]["bias"][head]
            for name, source in (("query", x), ("key", memory), ("value", memory))
        )
        if "query_norm" in parameters:
            query = layer_norm(query, parameters["query_norm"])
            key = layer_norm(key, parameters["key_norm"])
        if angles is not None:
            query, key = turned(query, angles), turned(key, angles)
        logits = query @ key.T
        if "relative_positions" in parameters:
            table, length = parameters["relative_positions"], len(x)
            for i in range(length):
                for j in range(length):
                    logits[i, j] += query[i] @ table[length - 1 + i - j]
        weights.append(softmax(logits / math.sqrt(query.shape[-1])))
        heads.append(weights[-1] @ value @ parameters["out"]["kernel"][head])
    return sum(heads) + parameters["out"]["bias"], np.stack(weights)


def vit_block(x, parameters):
    y, _ = attention(layer_norm(x, parameters["norm1"]), parameters["attention"])
    x = x + parameters.get("layer_scale1", 1) * y
    y = mlp(layer_norm(x, parameters["norm2"]), parameters["mlp"])
    return x + parameters.get("layer_scale2", 1) * y


def mixer_block(x, parameters):
    mixed = mlp(layer_norm(x, parameters["norm1"]).T, parameters["token_mixing"]).T
    x = x + mixed
    return x + mlp(layer_norm(x, parameters["norm2"]), parameters["channel_mixing"])


def axial_block(x, parameters):
    grid = x.reshape(2, 3, 16).copy()
    for row in range(2):
        grid[row] = vit_block(grid[row], parameters["row"])
    for column in range(3):
        grid[:, column] = vit_block(grid[:, column], parameters["column"])
    return grid.reshape(6, 16)


def parameters_of(module, layer=None):
    """The module's parameters as nested dictionaries of float64; of one layer if stacked."""
    tree = {}
    for name, array in flat_parameters(module).items():
        *places, last = name.split("/")
        branch = tree
        for place in places:
            branch = branch.setdefault(place, {})
        branch[last] = np.asarray(array if layer is None else array[layer], np.float64)
    return tree


@pytest.mark.parametrize(
    ("name", "options", "block"),
    [
        ("Mixer-B/16", {**SIZE, "width": 16, "mlp_width": 24, "token_mlp_width": 8}, mixer_block),
        ("Axial-ViT-B/16", {**VIT, "positions": "none"}, axial_block),
    ],
)
def test_a_block_equals_the_reference(name, options, block):
    model = filled_model(name, **options)
    values = intermediates(model, random_images(model.options), "patch_embeddings", "block_outputs")
    parameters = parameters_of(model.blocks, layer=0)
    for patches, output in zip(values["patch_embeddings"], values["block_outputs"][0], strict=True):
        np.testing.assert_allclose(output, block(np.float64(patches), parameters), atol=1e-5)


def test_weights_of_relative_attention_equal_the_reference():
    """With a class token, which comes first, LayerScale, and norms on queries and keys."""
    options = {"positions": "relative", "layer_scale": 0.1, "query_key_norm": True}
    model = filled_model("ViT-B/16", **VIT, **options)
    images = random_images(model.options)
    values = intermediates(model, images, "patch_embeddings", "attention_weights", "block_outputs")
    parameters = parameters_of(model.blocks, layer=0)
    for image, patches in enumerate(np.float64(values["patch_embeddings"])):
        tokens = np.concatenate([np.float64(model.class_token[0]), patches])
        normalized = layer_norm(tokens, parameters["norm1"])
        _, weights = attention(normalized, parameters["attention"])
        np.testing.assert_allclose(values["attention_weights"][0][image], weights, atol=1e-5)
        np.testing.assert_allclose(
            values["block_outputs"][0][image], vit_block(tokens, parameters), atol=1e-5
        )


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, lambda index, length: index),
        ({"rotary_reference": 16}, lambda index, length: index / length * 16),
        (
            {"rotary_coordinates": "centred"},
            lambda index, length: 2 * math.pi * (2 * (index + 0.5) / length - 1),
        ),
    ],
)
def test_rotary_positions_turn_queries_and_keys_of_patches(options, place):
    model = filled_model(
        "ViT-B/16",
        **VIT,
        positions="rotary_2d",
        rotary_temperature=100.0,
        num_registers=1,
        **options,
    )
    rows, columns = model.options.grid
    assert rows != columns
    quarter = model.options.width // 2 // 4
    angles = np.zeros((2 + rows * columns, 2 * quarter))  # The first two are not turned.
    for row in range(rows):
        for column in range(columns):
            for number in range(quarter):
                frequency = 100.0 ** (-number / quarter)
                token = angles[2 + row * columns + column]
                token[number] = place(row, rows) * frequency
                token[quarter + number] = place(column, columns) * frequency
    images = random_images(model.options)
    values = intermediates(model, images, "patch_embeddings", "attention_weights")
    parameters, block = parameters_of(model), parameters_of(model.blocks, layer=0)
    for image, patches in enumerate(np.float64(values["patch_embeddings"])):
        tokens = [parameters["class_token"][0], parameters["registers"][0], patches]
        normalized = layer_norm(np.concatenate(tokens), block["norm1"])
        _, weights = attention(normalized, block["attention"], angles=angles)
        np.testing.assert_allclose(values["attention_weights"][0][image], weights, atol=1e-5)


def test_class_token_registers_and_patches_come_in_this_order():
    """With a position each; the class token's features are the model's."""
    model = filled_model("ViT-B/16", **VIT, num_registers=2, representation_size=8)
    values = intermediates(
        model, random_images(model.options), "patch_embeddings", "block_outputs", "pre_logits"
    )
    parameters = parameters_of(model)
    block = parameters_of(model.blocks, layer=0)
    for image, patches in enumerate(np.float64(values["patch_embeddings"])):
        prefix = [parameters["class_token"][0], parameters["registers"][0]]
        tokens = np.concatenate([*prefix, patches]) + parameters["position_embedding"][0]
        expected = vit_block(tokens, block)
        np.testing.assert_allclose(values["block_outputs"][0][image], expected, atol=1e-5)
        features = dense(layer_norm(expected[0], parameters["norm"]), parameters["pre_logits"])
        np.testing.assert_allclose(values["pre_logits"][image], np.tanh(features), atol=1e-5)


def test_attention_pooling_sees_the_patches_and_no_prefix():
    model = filled_model("ViT-B/16", **VIT, pooling="attention", class_token=True, num_registers=2)
    values = intermediates(model, random_images(model.options), "block_outputs", "pre_logits")
    parameters = parameters_of(model)
    pooling = parameters["attention_pooling"]
    for tokens, found in zip(values["block_outputs"][0], values["pre_logits"], strict=True):
        patches = layer_norm(np.float64(tokens), parameters["norm"])[3:]
        x, _ = attention(pooling["probe"][0], pooling["attention"], memory=patches)
        expected = x + mlp(layer_norm(x, pooling["norm"]), pooling["mlp"])
        np.testing.assert_allclose(found, expected[0], atol=1e-5)


def group_norm(x, parameters):
    """Of one sequence [L, C], in 32 groups of channels over all places."""
    groups = x.reshape(len(x), 32, -1)
    mean = groups.mean((0, 2), keepdims=True)
    variance = groups.var((0, 2), keepdims=True)
    normalized = ((groups - mean) / np.sqrt(variance + 1e-6)).reshape(x.shape)
    return normalized * parameters["scale"] + parameters["bias"]


def relative_attention(x, parameters, heads):
    """Equation 4 of arXiv 2003.07853 on one sequence [L, C], place by place."""
    length, width = x.shape[0], x.shape[1] // heads
    projected = group_norm(x @ parameters["kernel"], parameters["norm_projection"])
    result, all_weights = np.zeros_like(x), np.zeros((heads, length, length))
    for head in range(heads):
        features = projected[:, 2 * width * head : 2 * width * (head + 1)]
        parts = (width // 2, width)
        query, key, value = np.split(features, parts, axis=1)
        query_table, key_table, value_table = np.split(
            parameters["relative_positions"], parts, axis=1
        )
        for i in range(length):
            offsets = [length - 1 + i - j for j in range(length)]
            logits = [
                query[i] @ key[j] + query[i] @ key_table[r] + key[j] @ query_table[r]
                for j, r in enumerate(offsets)
            ]
            weights = softmax(np.array(logits))
            all_weights[head, i] = weights
            output = sum(w * (value[j] + value_table[offsets[j]]) for j, w in enumerate(weights))
            result[i, width * head : width * (head + 1)] = output
    return group_norm(result, parameters["norm_out"]), all_weights


def test_relative_attention_of_an_axial_resnet_equals_the_reference():
    options = {"image_size": (16, 24), "stage_depths": (1,), "num_classes": 3, "num_heads": 2}
    model = filled_model("AxialResNet50", **options)
    module = model.trunk.stage1["unit01"].row_attention
    x = np.random.default_rng(0).normal(size=(2, 6, 64)).astype(np.float32)
    outputs, weights = nnx.jit(lambda module, x: module(x))(module, x)
    for image in range(2):
        expected = relative_attention(np.float64(x[image]), parameters_of(module), heads=2)
        np.testing.assert_allclose(outputs[image], expected[0], atol=1e-4)
        np.testing.assert_allclose(weights[image], expected[1], atol=1e-5)


def standardized_product(x, parameters, stride=1):
    """A 1x1 convolution of a map [H, W, C], its kernel standardised over what it sums."""
    kernel = parameters["kernel"][0, 0]
    kernel = (kernel - kernel.mean(0)) / (kernel.std(0) + 1e-5)
    return x[::stride, ::stride] @ kernel


def norm_of_map(x, parameters):
    return group_norm(x.reshape(-1, x.shape[-1]), parameters).reshape(x.shape)


def mean_of_windows(x):
    """Of 2x2 places, and of fewer at the border."""
    rows, columns = range(0, len(x), 2), range(0, x.shape[1], 2)
    return np.array([[x[i : i + 2, j : j + 2].mean((0, 1)) for j in columns] for i in rows])


def test_a_strided_unit_of_an_axial_resnet_equals_the_reference():
    """Along the columns, then along the rows, on a map of 5 x 3."""
    options = {"image_size": (20, 12), "stage_depths": (1, 1), "num_classes": 3, "num_heads": 2}
    model = filled_model("AxialResNet50", **options, width_factor=0.5)
    module = model.trunk.stage2["unit01"]
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 128)).astype(np.float32)
    outputs, (row_weights, column_weights) = nnx.jit(lambda module, x: module(x))(module, x)
    assert row_weights.shape == (2, 5, 2, 3, 3)
    assert column_weights.shape == (2, 3, 2, 5, 5)
    unit = parameters_of(module)
    for image in range(2):
        inputs = np.float64(x[image])
        y = np.maximum(norm_of_map(standardized_product(inputs, unit["conv1"]), unit["norm1"]), 0)
        for column in range(3):
            y[:, column], _ = relative_attention(y[:, column], unit["column_attention"], heads=2)
        for row in range(5):
            y[row], weights = relative_attention(y[row], unit["row_attention"], heads=2)
            np.testing.assert_allclose(row_weights[image, row], weights, atol=1e-4)
        y = standardized_product(np.maximum(mean_of_windows(y), 0), unit["conv3"])
        shortcut = standardized_product(inputs, unit["projection"], stride=2)
        total = norm_of_map(shortcut, unit["norm_projection"]) + norm_of_map(y, unit["norm3"])
        np.testing.assert_allclose(outputs[image], np.maximum(total, 0), atol=1e-3)
