"""Every config resolves; `configs/vit.py` to Table 3 and the text of the paper (2010.11929)."""

import dataclasses
import logging

import numpy as np
import pytest
from PIL import Image

from configs import bit, digits, fashion_mnist, few_labels, folder, vit
from vit_jax import train
from vit_jax.config import model_options, validate
from vit_jax.data.dataset import open_dataset
from vit_jax.durations import durations
from vit_jax.errors import ConfigError
from vit_jax.models import registry
from vit_jax.recipes.datasets import PRETRAINING
from vit_jax.recipes.models import RESNETS, TRANSFORMERS

VITS = ("ti16", "s16", "s32", "b8", "b16", "b32", "l16", "l32", "h14", "r50_b16", "r26_s32")

# Table 3: models, dataset, epochs, base learning rate, decay, weight decay, dropout.
TABLE_3 = [
    (("b16", "b32"), "jft300m", (7,), 8e-4, "linear", 0.1, 0.0),
    (("l32",), "jft300m", (7,), 6e-4, "linear", 0.1, 0.0),
    (("l16",), "jft300m", (7, 14), 4e-4, "linear", 0.1, 0.0),
    (("h14",), "jft300m", (14,), 3e-4, "linear", 0.1, 0.0),
    (("b16", "b32"), "imagenet21k", (90,), 1e-3, "linear", 0.03, 0.1),
    (("l16", "l32"), "imagenet21k", (30, 90), 1e-3, "linear", 0.03, 0.1),
    (("r50_b16", "r50_b32"), "jft300m", (7,), 8e-4, "linear", 0.1, 0.0),
    (("r50_l32",), "jft300m", (7,), 2e-4, "linear", 0.1, 0.0),
    (("r50_l16",), "jft300m", (7, 14), 4e-4, "linear", 0.1, 0.0),
    (VITS, "imagenet2012", (300,), 3e-3, "cosine", 0.3, 0.1),  # "ViT-*"
]
ROWS = [
    (model, dataset, epochs, *rest)
    for models, dataset, all_epochs, *rest in TABLE_3
    for model in models
    for epochs in all_epochs
]
# Without a row of their own -> the model whose row is taken.
NO_ROW = {
    ("ti16", "imagenet21k"): "ViT-B/16",
    ("s16", "jft300m"): "ViT-B/16",
    ("s32", "imagenet21k"): "ViT-B/32",
    ("b8", "jft300m"): "ViT-B/16",
    ("h14", "imagenet21k"): "ViT-L/16",
}
SIZES = {
    "imagenet2012": (1_281_167, 1_000),
    "imagenet21k": (14_197_122, 21_843),
    "jft300m": (303_000_000, 18_291),
}


def num_classes_of(config):
    """Those that are planned with: a head has as many as the data that is opened."""
    assert not config.model.num_classes
    return config.data.num_classes


@pytest.mark.parametrize(
    ("model", "dataset", "epochs", "learning_rate", "decay", "weight_decay", "dropout"), ROWS
)
def test_every_row_of_table_3(model, dataset, epochs, learning_rate, decay, weight_decay, dropout):
    config = vit.get_config(f"{model},{dataset},{epochs}")
    validate(config)
    assert config.note == ""
    assert config.total_epochs == epochs
    assert config.optimizer.learning_rate == learning_rate
    assert config.schedule.name == decay
    assert config.optimizer.weight_decay == weight_decay
    assert config.model.dropout_rate == dropout

    # The table's caption and section 4.1; section 3.1 for the hidden layer of the head.
    assert config.batch_size == 4096
    assert config.warmup_steps == 10_000
    assert (config.optimizer.name, config.optimizer.b1, config.optimizer.b2) == (
        "adamw",
        0.9,
        0.999,
    )
    options = model_options(config, num_classes_of(config))
    assert options.image_size == (224, 224)
    assert options.representation_size == options.width
    assert (config.objective.loss, options.head_bias) == ("sigmoid", -10.0)
    assert config.optimizer.grad_clip_norm == 1.0

    images, classes = SIZES[dataset]
    assert options.num_classes == classes
    assert durations(config, config.data.num_train_examples).total == images * epochs // 4096


@pytest.mark.parametrize(
    ("model", "learning_rate"),
    [("r50x1", 1e-3), ("r50x2", 1e-3), ("r101x1", 8e-4), ("r152x1", 6e-4), ("r152x2", 6e-4)],
)
def test_resnet_rows_of_table_3(model, learning_rate):
    for form in (model, f"v1_{model}"):
        config = bit.get_config(f"{form},jft300m")
        validate(config)
        assert config.note == ""
        assert config.optimizer.learning_rate == learning_rate
        assert (config.total_epochs, config.optimizer.weight_decay) == (7, 0.1)
        options = model_options(config, num_classes_of(config))
        assert options.preactivation == (form == model)


@pytest.mark.parametrize("dataset", PRETRAINING)
@pytest.mark.parametrize(
    "preset",
    [(vit, name) for name in TRANSFORMERS] + [(bit, name) for name in RESNETS],
    ids=lambda preset: preset[1],
)
def test_every_model_has_a_recipe_for_every_dataset(preset, dataset):
    module, name = preset
    config = module.get_config(f"{name},{dataset}")
    validate(config)
    assert num_classes_of(config) == SIZES[dataset][1]
    model_options(config, num_classes_of(config))


@pytest.mark.parametrize(("model", "dataset"), NO_ROW)
def test_a_model_without_a_row_says_whose_it_takes(model, dataset):
    nearest = NO_ROW[model, dataset]
    config = vit.get_config(f"{model},{dataset}")
    assert TRANSFORMERS[model] in config.note
    assert nearest in config.note
    short_name = next(short for short, name in TRANSFORMERS.items() if name == nearest)
    of_nearest = vit.get_config(f"{short_name},{dataset}")
    for key in ("total_epochs", "optimizer", "schedule"):
        assert config[key] == of_nearest[key]
    assert config.model.dropout_rate == of_nearest.model.dropout_rate


@pytest.mark.parametrize(
    ("arguments", "equal_to"),
    [
        ("", "b16,imagenet2012,300"),
        ("b16", "b16,imagenet2012,300"),
        ("l16,imagenet21k", "l16,imagenet21k,90"),
        ("l16,jft300m", "l16,jft300m,14"),
        ("b32,,", "b32,imagenet2012,300"),
    ],
)
def test_defaults_are_imagenet_and_the_longer_training(arguments, equal_to):
    assert vit.get_config(arguments) == vit.get_config(equal_to)


def test_without_arguments_it_is_vit_b_16_on_imagenet():
    assert vit.get_config() == vit.get_config("b16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("b17", "'b17' is not one of ti16, s16"),
        ("b16,cifar10", "'cifar10' is not one of imagenet2012, imagenet21k, jft300m"),
        ("b16,jft300m,14", "7 epochs here, not 14"),
        ("l16,jft300m,90", "7 and 14 epochs here, not 90"),
        ("b16,imagenet2012,many", "300 epochs here, not many"),
        ("b16,imagenet2012,300,x", "expected MODEL"),
    ],
)
def test_unknown_arguments_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        vit.get_config(arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "b16",
            [
                "ViT-B/16 for 1000 classes at 224x224 px: 87.2M parameters, 17.6 GMACs",
                "1,281,167 examples an epoch",
                "93,835 updates (300 epochs), warm-up 10,000",
            ],
        ),
        ("ti16,jft300m", ["note      Table 3 has no row for ViT-Ti/16 on jft300m"]),
    ],
)
def test_a_dry_run_needs_no_data(arguments, expected, caplog):
    with caplog.at_level(logging.INFO, logger="vit_jax"):
        assert train.run(vit.get_config(arguments), "", dry_run=True) == {}
    for text in expected:
        assert text in caplog.text


def test_the_head_has_the_classes_of_the_data_that_is_named(tmp_path, caplog):
    for index, name in enumerate(("cat", "dog", "fox")):
        for split in ("train", "val"):
            folder_of = tmp_path / "photos" / split / name
            folder_of.mkdir(parents=True)
            picture = np.full((24, 24, 3), 80 * index, np.uint8)
            for number in range(4):
                Image.fromarray(picture).save(folder_of / f"{number}.png")
    config = vit.get_config("ti16,imagenet21k")
    config.data.source = f"folder:{tmp_path / 'photos'}"
    with caplog.at_level(logging.INFO, logger="vit_jax"):
        train.run(config, "", dry_run=True)
    assert "ViT-Ti/16 for 3 classes" in caplog.text
    assert "12 examples an epoch" in caplog.text

    dataset = open_dataset(config)
    assert (dataset.num_classes, dataset.class_names) == (3, ("cat", "dog", "fox"))
    assert dataset.num_examples == 12


@pytest.mark.parametrize("dataset", ["imagenet21k", "jft300m"])
def test_datasets_without_a_public_copy_ask_for_a_source(dataset, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.data\.source is empty"):
        train.run(vit.get_config(f"b16,{dataset}"), tmp_path)


@pytest.mark.parametrize(
    ("config", "num_examples", "updates", "parameters"),
    [  # Parameters by hand: patches, class token, positions; blocks; norm, head.
        (
            digits.get_config(),
            1_437,
            400,
            (4 + 1 + 16) * 64 + 4 * (4 * 64 * 65 + 2 * 64 * 128 + 192 + 256) + 128 + 650,
        ),
        (
            fashion_mnist.get_config(),
            60_000,
            11_250,
            (49 + 1 + 16) * 96 + 4 * (4 * 96 * 97 + 2 * 96 * 192 + 288 + 384) + 192 + 970,
        ),
    ],
    ids=["digits", "fashion_mnist"],
)
def test_configs_for_a_cpu_resolve(config, num_examples, updates, parameters):
    validate(config)
    assert durations(config, num_examples).total == updates
    options = model_options(config, num_classes=10)
    count = registry.count_parameters(config.model.name, **dataclasses.asdict(options))
    assert count == parameters


def test_the_folder_config_takes_its_folder_and_asks_for_one(tmp_path):
    config = folder.get_config(str(tmp_path))
    validate(config)
    assert config.data.source == f"folder:{tmp_path}"
    with pytest.raises(ConfigError, match="Name the folder"):
        folder.get_config()


def test_seeds_of_few_labels_share_no_image():
    splits = [few_labels.get_config(f"scratch,30,{seed}").data.train_split for seed in (0, 1, 2)]
    assert splits == ["train[0:30]", "train[30:60]", "train[60:90]"]
