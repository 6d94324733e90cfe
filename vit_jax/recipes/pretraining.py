"""What all pre-training shares, and the paper's recipes, as data: Table 3 of arXiv 2010.11929."""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.errors import ConfigError
from vit_jax.models.registry import model_options
from vit_jax.models.vit import ViTOptions
from vit_jax.recipes.arguments import choose, split_arguments


class PretrainingData(NamedTuple):
    """What a recipe has to know of its data, so that it can be planned without it."""

    source: str
    num_train_examples: int
    num_classes: int
    eval_split: str


# ImageNet-21k and JFT-300M have no public copy that could be named here. Class counts are those
# of the released ImageNet-21k models, and of JFT-300M as in the BiT paper (1912.11370).
DATASETS = {
    "imagenet2012": PretrainingData("tfds:imagenet2012", 1_281_167, 1_000, "validation"),
    "imagenet21k": PretrainingData("", 14_197_122, 21_843, ""),
    "jft300m": PretrainingData("", 303_000_000, 18_291, ""),
}


def pretraining(name: str, data: PretrainingData) -> ConfigDict:
    """A model on a dataset at 224 px, as all recipes of pre-training have it.

    Data without a source has the number of its classes from the source that the user names.
    """
    config = default_config()
    config.eval_every_epochs = 1.0
    config.checkpoint_every_steps = 1_000
    config.data.source = data.source
    config.data.num_train_examples = data.num_train_examples
    config.data.eval_split = data.eval_split
    config.data.eval_crop = "center"
    config.model.name = name
    if data.source:
        config.model.num_classes = data.num_classes
    else:
        config.data.num_classes = data.num_classes
    config.model.image_size = 224
    config.model.dtype = "bfloat16"
    return config


def held_out(config: ConfigDict, *, train_percent: int) -> None:
    """Trains on a part of the training split; Big Vision's recipes were chosen on the rest."""
    config.data.train_split = f"train[:{train_percent}%]"
    config.data.num_train_examples = round(config.data.num_train_examples * train_percent / 100)


class Row(NamedTuple):
    """One row of Table 3."""

    epochs: tuple[int, ...]
    learning_rate: float
    decay: str
    weight_decay: float
    dropout: float


B_21K = Row((90,), 1e-3, "linear", 0.03, 0.1)
L_21K = Row((30, 90), 1e-3, "linear", 0.03, 0.1)
IMAGENET = Row((300,), 3e-3, "cosine", 0.3, 0.1)

# "Hybrids: the exact setup of their ViT counterparts" (section 4.1), where they have no row.
TABLE_3: dict[str, dict[str, Row]] = {
    "jft300m": {
        "ViT-B/16": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "ViT-B/32": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "ViT-L/32": Row((7,), 6e-4, "linear", 0.1, 0.0),
        "ViT-L/16": Row((7, 14), 4e-4, "linear", 0.1, 0.0),
        "ViT-H/14": Row((14,), 3e-4, "linear", 0.1, 0.0),
        "BiT-R50x1": Row((7,), 1e-3, "linear", 0.1, 0.0),
        "BiT-R50x2": Row((7,), 1e-3, "linear", 0.1, 0.0),
        "BiT-R101x1": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "BiT-R152x1": Row((7,), 6e-4, "linear", 0.1, 0.0),
        "BiT-R152x2": Row((7,), 6e-4, "linear", 0.1, 0.0),
        "R50+ViT-B/16": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "R50+ViT-B/32": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "R50+ViT-L/32": Row((7,), 2e-4, "linear", 0.1, 0.0),
        "R50+ViT-L/16": Row((7, 14), 4e-4, "linear", 0.1, 0.0),
    },
    "imagenet21k": {
        "ViT-B/16": B_21K,
        "ViT-B/32": B_21K,
        "ViT-L/16": L_21K,
        "ViT-L/32": L_21K,
        "R50+ViT-B/16": B_21K,
        "R50+ViT-B/32": B_21K,
        "R50+ViT-L/16": L_21K,
        "R50+ViT-L/32": L_21K,
    },
    "imagenet2012": dict.fromkeys(
        (
            *("ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-B/8", "ViT-B/16", "ViT-B/32", "ViT-L/16"),
            *("ViT-L/32", "ViT-H/14", "R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16"),
            *("R50+ViT-L/32", "R26+ViT-S/32", "R26+ViT-B/32", "R+ViT-Ti/16"),
        ),
        IMAGENET,  # The table's "ViT-*".
    ),
}

# For a model without a row: whose it takes, the first of these that has one.
NEAREST = {
    "ViT-Ti/16": ("ViT-B/16",),
    "ViT-S/16": ("ViT-B/16",),
    "ViT-S/32": ("ViT-B/32",),
    "ViT-B/8": ("ViT-B/16",),
    "ViT-H/14": ("ViT-L/16",),
    "R+ViT-Ti/16": ("R50+ViT-B/16",),
    "R26+ViT-S/32": ("R50+ViT-B/32",),
    "R26+ViT-B/32": ("R50+ViT-B/32",),
    "Axial-ViT-B/16": ("ViT-B/16",),
    "Axial-ViT-B/32": ("ViT-B/32",),
    "Mixer-B/16": ("ViT-B/16",),
    "Mixer-B/32": ("ViT-B/32",),
    "Mixer-L/16": ("ViT-L/16",),
    "AxialResNet50": ("BiT-R50x1", "ViT-B/16"),
    "BiT-R50x1": ("ViT-B/16",),
    "BiT-R50x2": ("ViT-B/16",),
    "BiT-R50x3": ("BiT-R50x2", "ViT-B/16"),
    "BiT-R101x1": ("ViT-B/16",),
    "BiT-R101x3": ("BiT-R101x1", "ViT-B/16"),
    "BiT-R152x1": ("ViT-L/16",),
    "BiT-R152x2": ("ViT-L/16",),
    "BiT-R152x4": ("BiT-R152x2", "ViT-L/16"),
    "BiT-R200x3": ("BiT-R152x2", "ViT-L/16"),
}


def paper_pretraining(models: dict[str, str], arguments: str, *, default_model: str) -> ConfigDict:
    """The recipe of Table 3 for MODEL[,DATASET[,EPOCHS]].

    Args:
      models: short name -> registry name, of the models that may be asked for.
      arguments: as given on the command line; DATASET is imagenet2012 by default, EPOCHS the
        longest that the table has.
      default_model: the short name for an empty MODEL.
    """
    model, dataset, given = split_arguments(arguments, "MODEL[,DATASET[,EPOCHS]]")
    name = models[choose(arguments, model or default_model, models)]
    rows = TABLE_3[choose(arguments, dataset := dataset or "imagenet2012", DATASETS)]
    form = name.replace("BiT-v1-", "BiT-")  # Both forms of a ResNet share a row.
    owner = next(near for near in (form, *NEAREST.get(form, ())) if near in rows)
    row = rows[owner]
    if given and given not in map(str, row.epochs):
        raise ConfigError(
            f"{arguments!r}: Table 3 has {' and '.join(map(str, row.epochs))} epochs here, not "
            f"{given}; for others set --config.total_epochs."
        )

    config = pretraining(name, DATASETS[dataset])
    if owner != form:
        config.note = f"Table 3 has no row for {name} on {dataset}: this is the one of {owner}."
    config.batch_size = 4096
    config.total_epochs = float(given or row.epochs[-1])
    config.warmup_steps = 10_000
    # The paper is silent on the loss; its authors' code pre-trains with this one.
    config.objective.loss = "sigmoid"
    config.model.head_bias = -10.0  # All classes start improbable, as sigmoids have to.
    options = model_options(name)
    if isinstance(options, ViTOptions):
        config.model.representation_size = options.width  # The hidden tanh layer of section 3.1.
        config.model.dropout_rate = row.dropout

    config.optimizer.learning_rate = row.learning_rate
    config.optimizer.weight_decay = row.weight_decay
    config.optimizer.b1, config.optimizer.b2 = 0.9, 0.999  # Section 4.1.
    # Stated for ImageNet (appendix B.1); for the others as in the authors' code.
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = row.decay
    return config
