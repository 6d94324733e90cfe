"""`configs/finetune.py` against Table 4, `configs/vtab.py` against VTAB's splits and Table 9."""

import numpy as np
import pytest

from configs import bit, finetune, transfer, vtab
from vit_jax.config import model_options, resolved, validate
from vit_jax.data.images.transforms import preprocessing_of
from vit_jax.data.sources.labels import LABELS
from vit_jax.durations import durations
from vit_jax.errors import ConfigError
from vit_jax.recipes.models import ALL, resolution

SMALL, LARGE = (0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.06)
# Dataset, steps and rates of Table 4; warm-up of the authors' code; the development split's share;
# training images and classes.
TABLE_4 = [
    ("imagenet2012", 20_000, LARGE, 500, 1, 1_281_167, 1000),
    ("cifar100", 10_000, SMALL, 500, 2, 50_000, 100),
    ("cifar10", 10_000, SMALL, 500, 2, 50_000, 10),
    ("oxford_iiit_pet", 500, SMALL, 100, 10, 3_680, 37),
    ("oxford_flowers102", 500, SMALL, 100, 10, 1_020, 102),
]
# Task, classes, validation part, test split; then whether images are cropped, and mirrored.
VTAB = """
caltech101           102  train[2754:2954]      test             crop    flip
cifar100             100  train[45000:45200]    test             crop    flip
dtd                   47  validation[:200]      test             crop    flip
oxford_flowers102    102  validation[:200]      test             crop    flip
oxford_iiit_pet       37  train[2944:3144]      test             crop    flip
sun397               397  validation[:200]      test             crop    flip
svhn                  10  train[65931:66131]    test             crop    flip
camelyon               2  validation[:200]      test             crop    flip
eurosat               10  train[16200:16400]    train[21600:]    crop    flip
resisc45              45  train[18900:19100]    train[25200:]    crop    flip
retinopathy            5  validation[:200]      test             crop    flip
clevr_count            8  train[63000:63200]    validation       whole   flip
clevr_distance         6  train[63000:63200]    validation       whole   flip
dmlab                  6  validation[:200]      test             whole   flip
dsprites_location     16  train[589824:590024]  train[663552:]   whole   keep
dsprites_orientation  16  train[589824:590024]  train[663552:]   crop    keep
kitti_distance         4  validation[:200]      test             whole   flip
smallnorb_azimuth     18  test[:200]            test[50%:]       crop    keep
smallnorb_elevation    9  test[:200]            test[50%:]       crop    flip
"""


def check_shared(config):
    """What the caption of Table 4 says of all fine-tuning."""
    validate(config)
    assert config.batch_size == 512
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.momentum_dtype) == (
        *("sgd", 0.9, "bfloat16"),
    )
    assert (optimizer.grad_clip_norm, optimizer.weight_decay) == (1.0, 0.0)
    assert (config.schedule.name, resolved(config)["objective.loss"]) == ("cosine", "softmax")
    options = model_options(config, config.data.num_classes or 2)
    assert getattr(options, "representation_size", 0) == 0
    assert np.all(options.head_bias == 0)


@pytest.mark.parametrize(
    ("dataset", "steps", "rates", "warmup", "percent", "images", "classes"), TABLE_4
)
@pytest.mark.parametrize("model", ["b16", "h14", "r50_l16", "r152x4"])
def test_table_4(model, dataset, steps, rates, warmup, percent, images, classes):
    config = finetune.get_config(f"{model},{dataset}")
    check_shared(config)
    resolved = durations(config, config.data.num_train_examples)
    assert (resolved.total, resolved.warmup) == (steps, warmup)
    assert config.sweep.learning_rates == rates
    assert config.optimizer.learning_rate in rates
    assert config.sweep.train_split == f"train[:{100 - percent}%]"
    assert config.sweep.eval_split == f"train[{100 - percent}%:]"
    assert config.data.train_split == "train"
    assert (config.data.num_train_examples, config.data.num_classes) == (images, classes)
    imagenet = dataset == "imagenet2012"
    size = {False: 384, True: 512} if model != "h14" else {False: 378, True: 518}
    assert config.model.image_size == size[imagenet]
    assert config.ema_decay == (0.9999 if imagenet else 0.0)
    assert config.ema_warmup is not imagenet  # Appendix B.1.1: "with factor 0.9999", no more.


def test_imagenet_at_384_px_is_not_averaged():
    # "fine-tuned at 384, no Polyak averaging": Table 5's 77.91, 83.97 and 84.15 % of B/16.
    config = finetune.get_config("b16,imagenet2012,384")
    check_shared(config)
    assert (config.model.image_size, config.ema_decay, config.total_steps) == (384, 0.0, 20_000)


def pixels_of(config):
    data = config.data
    trained = (data.train_crop, data.interpolation, data.antialias)
    found = preprocessing_of(data)
    return (*trained, found.crop, found.resize * (found.crop == "center"), found.interpolation)


# Big Vision, transfer.py at 2f3f493 (CIFAR with crop=resmall_crop); ImageNet: vision_transformer,
# input_pipeline.py at d68dd01.
@pytest.mark.parametrize(
    ("arguments", "pixels"),
    [
        ("b16,cifar10", ("resize_small_crop(448)", "area", False, "center", 448, "area")),
        ("b16,cifar100", ("resize_small_crop(448)", "area", False, "center", 448, "area")),
        ("h14,cifar10", ("resize_small_crop(441)", "area", False, "center", 441, "area")),
        ("b16,oxford_iiit_pet", ("inception", "bilinear", False, "center", 448, "area")),
        ("b16,oxford_flowers102", ("inception", "bilinear", False, "center", 448, "area")),
        ("b16,folder:a,b", ("inception", "bilinear", False, "center", 448, "area")),
        ("b16,imagenet2012", ("inception", "bilinear", False, "resize", 0, "bilinear")),
        ("b16,imagenet2012,384", ("inception", "bilinear", False, "resize", 0, "bilinear")),
    ],
)
def test_pixels_of_fine_tuning(arguments, pixels):
    config = finetune.get_config(arguments)
    assert pixels_of(config) == pixels
    if arguments.endswith("a,b"):
        assert config.data.source == "folder:a,b"


# vision_transformer, configs/models.py at 0593a59: transformer.dropout_rate.
@pytest.mark.parametrize("model", ["l16", "h14", "r50_b16", "r50_l32"])
def test_the_released_configs_dropout_is_an_option(model):
    assert finetune.get_config(f"{model},cifar10").model.dropout_rate is None
    assert finetune.get_config(f"{model},cifar10,drop").model.dropout_rate == 0.1
    both = finetune.get_config(f"{model},imagenet2012,384+drop")
    assert (both.model.dropout_rate, both.ema_decay) == (0.1, 0.0)
    assert finetune.get_config(f"{model},imagenet2012,drop").ema_decay == 0.9999


def test_vtabs_pixels():
    assert pixels_of(vtab.get_config("dtd,l16")) == (
        *("resize_crop(448)", "bilinear", False),
        *("resize", 0, "bilinear"),
    )


@pytest.mark.parametrize("model", ALL)
def test_every_model_can_be_fine_tuned(model):
    for config in (finetune.get_config(f"{model},cifar10"), vtab.get_config(f"dtd,{model}")):
        check_shared(config)
        assert config.model.name == ALL[model]


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("b16", "hf:timm/vit_base_patch16_224.orig_in21k"),
        ("h14", "hf:timm/vit_huge_patch14_224.orig_in21k"),
        ("s16", "hf:timm/vit_small_patch16_224.augreg_in21k"),
        ("mixer_l16", "hf:timm/mixer_l16_224.goog_in21k"),
        ("r50_l16", "R50+ViT-L_16.npz"),
        ("r152x4", "hf:timm/resnetv2_152x4_bit.goog_in21k"),
    ],
)
def test_weights_are_on_the_hub_or_have_their_published_names(model, weights):
    assert finetune.get_config(f"{model},cifar10").init == weights


@pytest.mark.parametrize("model", ["mixer_b16", "mixer_l16"])
def test_a_mixer_keeps_the_size_that_its_parameters_fix(model):
    for config in (finetune.get_config(f"{model},imagenet2012"), vtab.get_config(f"dtd,{model}")):
        assert model_options(config, 2).num_patches == 14 * 14  # As published, at 224 px.


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("ViT-H/14", 384, 378),
        ("ViT-H/14", 512, 504),  # 518 is nearer, and larger.
        ("ViT-H/14", 518, 518),
        ("ViT-B/32", 383, 352),
        ("R26+ViT-S/32", 255, 224),
        ("BiT-R50x1", 383, 383),
    ],
)
def test_the_largest_size_that_patches_divide(name, size, expected):
    assert resolution(name, size) == expected


def test_a_folder_has_the_smallest_schedule_and_its_own_classes():
    config = finetune.get_config("b16,folder:photos/of:mine")
    check_shared(config)
    assert config.data.source == "folder:photos/of:mine"
    assert (config.total_steps, config.data.num_classes) == (500, 0)


@pytest.mark.parametrize("line", VTAB.strip().splitlines(), ids=lambda line: line.split()[0])
def test_vtab(line):
    task, classes, validation, test, crop, flip = line.split()
    config = vtab.get_config(f"{task},l16")
    check_shared(config)
    assert (config.total_steps, config.warmup_steps) == (2500, 200)
    assert config.optimizer.learning_rate == 0.01
    assert config.model.image_size == 384
    assert config.data.num_classes == int(classes)
    assert config.data.train_split == f"train[:800]+{validation}"
    assert (config.sweep.train_split, config.sweep.eval_split) == ("train[:800]", validation)
    assert config.data.eval_split == test
    assert config.data.train_crop == {"crop": "resize_crop(448)", "whole": "resize"}[crop]
    assert config.data.flip == (flip == "flip")
    if (label := LABELS.get(config.data.label)) is not None:
        assert label.num_classes == int(classes)


@pytest.mark.parametrize(
    ("get_config", "arguments", "message"),
    [
        (finetune.get_config, "b16,cifar10,384", "384 is of imagenet2012"),
        (finetune.get_config, "r50x1,cifar10,drop", "BiT-R50x1 has no dropout"),
        (finetune.get_config, "b17,cifar10", "'b17' is not one of ti16, s16"),
        (finetune.get_config, "b16,cifar", "'cifar' is not one of imagenet2012, cifar100, cifar10"),
        (finetune.get_config, "b16,folder:", "name the folder"),
        (vtab.get_config, "clevr", "'clevr' is not one of caltech101"),
        (vtab.get_config, "dtd,b17", "'b17' is not one of"),
    ],
)
def test_unknown_arguments_are_named(get_config, arguments, message):
    with pytest.raises(ConfigError, match=message):
        get_config(arguments)


def test_the_transfer_demonstration_differs_in_its_start_alone():
    for seed in (0, 2):
        finetuned, scratch = (
            transfer.get_config(f"{run},{seed}") for run in ("finetune", "scratch")
        )
        validate(finetuned)
        assert finetuned.data == scratch.data
        assert finetuned.model == scratch.model
        assert finetuned.data.train_split == f"train[{20 * seed}:{20 * seed + 20}]"
        assert (finetuned.init, scratch.init) == ("runs/pretrain", "")
    first = transfer.get_config("pretrain")
    assert not set(first.data.classes) & set(finetuned.data.classes)
    assert first.model.image_size < finetuned.model.image_size
    with pytest.raises(ConfigError, match="RUN one of pretrain, finetune, scratch"):
        transfer.get_config("train")


@pytest.mark.parametrize("preset", [finetune, vtab, bit])
def test_data_that_tfds_has_not_prepared_comes_from_the_hub(preset):
    arguments = {finetune: "b16,{}", vtab: "{},b16", bit: "r50x1,{},hyperrule"}[preset]
    prepared = preset.get_config(arguments.format("cifar100"))
    found = preset.get_config(arguments.format("hf:cifar100"))
    assert found.data.source == "hf:uoft-cs/cifar100"
    assert found.data.columns == "label=fine_label"
    found.data.update({"source": "tfds:cifar100", "columns": ""})
    assert found.to_dict() == prepared.to_dict()


def test_any_data_of_the_hub_is_fine_tuned_on_as_a_folder_is():
    found = finetune.get_config("b16,hf:owner/pets:small@v1")
    expected = finetune.get_config("b16,folder:DIR")
    assert found.data.source == "hf:owner/pets:small@v1"
    found.data.source = expected.data.source
    assert found.to_dict() == expected.to_dict()


def test_data_with_other_splits_on_the_hub_is_refused():
    with pytest.raises(ConfigError, match=r"'oxford_flowers102' is not one of imagenet2012"):
        finetune.get_config("b16,hf:oxford_flowers102")
    with pytest.raises(ConfigError, match="'dtd' is not one of cifar100"):
        vtab.get_config("hf:dtd")
