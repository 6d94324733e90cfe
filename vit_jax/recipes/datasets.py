"""Facts about the recipes' data, so that they can be planned without it."""

from typing import NamedTuple

from vit_jax.errors import ConfigError
from vit_jax.recipes.arguments import choose


class Dataset(NamedTuple):
    """The source of a dataset, and its sizes; 0 for what is to be counted."""

    source: str
    num_train_examples: int
    num_classes: int
    eval_split: str


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
FOLDER = "folder"


def finetuning_dataset(arguments: str, value: str) -> tuple[str, Dataset]:
    """The name and the dataset that `value` stands for: one of `FINETUNING`, or folder:DIR.

    Raises ConfigError, with the config's `arguments`, for any other.
    """
    kind, _, folder = value.partition(":")
    if kind != FOLDER:
        return value, FINETUNING[choose(arguments, value, [*FINETUNING, "folder:DIR"])]
    if not folder:
        raise ConfigError(f"{arguments!r}: name the folder: MODEL,folder:DIR.")
    return FOLDER, Dataset(value, 0, 0, "")
