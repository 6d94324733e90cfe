"""Facts about the recipes' data, so that they can be planned without it."""

from collections.abc import Container
from typing import NamedTuple

from vit_jax.errors import ConfigError
from vit_jax.recipes.arguments import choose


class Dataset(NamedTuple):
    """The source of a dataset, and its sizes; 0 for what is to be counted.

    `columns` are `config.data.columns`, of a source that has more than one label.
    """

    source: str
    num_train_examples: int
    num_classes: int
    eval_split: str
    columns: str = ""


IMAGENET = Dataset("tfds:imagenet2012", 1_281_167, 1_000, "validation")

# ImageNet-21k and JFT-300M have no public copy that could be named here. Class counts are those
# of the released ImageNet-21k models, and of JFT-300M as in the BiT paper (1912.11370).
PRETRAINING = {
    "imagenet2012": IMAGENET,
    "imagenet21k": Dataset("", 14_197_122, 21_843, ""),
    "jft300m": Dataset("", 303_000_000, 18_291, ""),
}

FINETUNING = {
    "imagenet2012": IMAGENET,
    "cifar100": Dataset("tfds:cifar100", 50_000, 100, "test"),
    "cifar10": Dataset("tfds:cifar10", 50_000, 10, "test"),
    "oxford_iiit_pet": Dataset("tfds:oxford_iiit_pet", 3_680, 37, "test"),
    "oxford_flowers102": Dataset("tfds:oxford_flowers102", 1_020, 102, "test"),
}
FOLDER, HUB = "folder", "hf"


class OnHub(NamedTuple):
    """Where the Hugging Face Hub has a dataset of TFDS, with the same splits."""

    source: str
    columns: str = ""


# By the names that the presets have for them; the images of a split come in another order than TFDS's.
ON_HUB = {
    "imagenet2012": OnHub("hf:ILSVRC/imagenet-1k"),
    "cifar100": OnHub("hf:uoft-cs/cifar100", "label=fine_label"),
    "cifar10": OnHub("hf:uoft-cs/cifar10"),
    "oxford_iiit_pet": OnHub("hf:timm/oxford-iiit-pet", "label=label"),
    "svhn": OnHub("hf:ufldl-stanford/svhn:cropped_digits"),
    "camelyon": OnHub("hf:1aurent/PatchCamelyon"),
}


def finetuning_dataset(arguments: str, value: str) -> tuple[str, Dataset]:
    """The name and the dataset that `value` stands for.

    It is one of `FINETUNING`, hf:NAME for one of these from the Hub, or the images of folder:DIR or
    hf:OWNER/NAME. Raises ConfigError, with the config's `arguments`, for any other.
    """
    kind, _, location = value.partition(":")
    if kind == FOLDER and not location:
        raise ConfigError(f"{arguments!r}: name the folder: MODEL,folder:DIR.")
    if kind == FOLDER or (kind == HUB and "/" in location):
        return FOLDER, Dataset(value, 0, 0, "")
    if kind == HUB:
        name, on_hub = hub_dataset(arguments, location, FINETUNING)
        return name, FINETUNING[name]._replace(**on_hub._asdict())
    known = [*FINETUNING, "folder:DIR", "hf:OWNER/NAME", "hf:cifar10"]
    return value, FINETUNING[choose(arguments, value, known)]


def hub_dataset(arguments: str, name: str, known: Container[str]) -> tuple[str, OnHub]:
    """The name, among those `known`, of a dataset and where the Hub has it; else ConfigError."""
    name = choose(arguments, name, [each for each in ON_HUB if each in known])
    return name, ON_HUB[name]
