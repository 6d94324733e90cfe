"""Pre-training as in Table 3 of "An Image is Worth 16x16 Words" (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/vit.py:b16 --workdir=DIR
    python -m vit_jax.main --config=configs/vit.py:l16,imagenet21k,30 --workdir=DIR \
        --config.data.source=folder:DIR

Arguments: MODEL[,DATASET[,EPOCHS]]; DATASET is imagenet2012 (default), imagenet21k or jft300m;
EPOCHS is one that the table has, the longest by default.

Expected: ViT-B/16 pre-trained on ImageNet for 300 epochs and fine-tuned on it at 384 px reaches
77.91 % (Table 5); on ImageNet-21k for 90 epochs 83.97 %; on JFT-300M for 7 epochs 84.15 %.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.errors import ConfigError
from vit_jax.models.registry import model_options


class Dataset(NamedTuple):
    """What a preset has to know of its data, so that it can be planned without it."""

    source: str
    num_train_examples: int
    num_eval_examples: int
    num_classes: int
    eval_split: str


class Row(NamedTuple):
    """One row of Table 3."""

    epochs: tuple[int, ...]
    learning_rate: float
    decay: str
    weight_decay: float
    dropout: float


MODELS = {
    "ti16": "ViT-Ti/16",
    "s16": "ViT-S/16",
    "s32": "ViT-S/32",
    "b8": "ViT-B/8",
    "b16": "ViT-B/16",
    "b32": "ViT-B/32",
    "l16": "ViT-L/16",
    "l32": "ViT-L/32",
    "h14": "ViT-H/14",
}

# ImageNet-21k and JFT-300M have no public copy that could be named here. Class counts are those
# of the released ImageNet-21k models, and of JFT-300M as in the BiT paper (1912.11370).
DATASETS = {
    "imagenet2012": Dataset("tfds:imagenet2012", 1_281_167, 50_000, 1_000, "validation"),
    "imagenet21k": Dataset("", 14_197_122, 0, 21_843, ""),
    "jft300m": Dataset("", 303_000_000, 0, 18_291, ""),
}

IMAGENET = Row((300,), 3e-3, "cosine", 0.3, 0.1)
TABLE_3 = {
    "imagenet21k": {
        "b16": Row((90,), 1e-3, "linear", 0.03, 0.1),
        "b32": Row((90,), 1e-3, "linear", 0.03, 0.1),
        "l16": Row((30, 90), 1e-3, "linear", 0.03, 0.1),
        "l32": Row((30, 90), 1e-3, "linear", 0.03, 0.1),
    },
    "jft300m": {
        "b16": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "b32": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "l16": Row((7, 14), 4e-4, "linear", 0.1, 0.0),
        "l32": Row((7,), 6e-4, "linear", 0.1, 0.0),
        "h14": Row((14,), 3e-4, "linear", 0.1, 0.0),
    },
    "imagenet2012": dict.fromkeys(MODELS, IMAGENET),  # The table's "ViT-*".
}
# For a model without a row: the nearest one in size and patch that has.
NEAREST = {"ti16": "b16", "s16": "b16", "s32": "b32", "b8": "b16", "h14": "l16"}


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe of Table 3 for MODEL[,DATASET[,EPOCHS]]."""
    model, dataset_name, epochs = parse(arguments)
    dataset, rows = DATASETS[dataset_name], TABLE_3[dataset_name]
    row = rows.get(model) or rows[NEAREST[model]]
    if epochs not in (*row.epochs, None):
        raise ConfigError(
            f"configs/vit.py:{arguments}: Table 3 has {' and '.join(map(str, row.epochs))} epochs "
            f"here, not {epochs}; for others set --config.total_epochs."
        )

    config = default_config()
    if model not in rows:
        config.note = (
            f"Table 3 has no row for {MODELS[model]} on {dataset_name}: "
            f"this is the one of {MODELS[NEAREST[model]]}."
        )
    config.batch_size = 4096
    config.total_epochs = float(epochs or row.epochs[-1])
    config.warmup_steps = 10_000
    config.eval_every_epochs = 1.0
    config.checkpoint_every_steps = 1_000
    # The paper is silent on the loss; its authors' code pre-trains with this one.
    config.loss = "sigmoid"

    config.data.source = dataset.source
    config.data.num_train_examples = dataset.num_train_examples
    config.data.num_eval_examples = dataset.num_eval_examples
    config.data.eval_split = dataset.eval_split
    config.data.eval_crop = "center"

    config.model.name = MODELS[model]
    config.model.num_classes = dataset.num_classes
    config.model.image_size = 224
    config.model.representation_size = model_options(
        MODELS[model]
    ).width  # The hidden tanh layer of section 3.1.
    config.model.head_bias = -10.0  # All classes start improbable, as sigmoids have to.
    config.model.dropout_rate = row.dropout
    config.model.dtype = "bfloat16"

    config.optimizer.learning_rate = row.learning_rate
    config.optimizer.weight_decay = row.weight_decay
    # Stated for ImageNet (appendix B.1); for the others as in the authors' code.
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = row.decay
    return config


def parse(arguments: str) -> tuple[str, str, int | None]:
    """MODEL, DATASET and EPOCHS (None if not given); raises ConfigError for unknown ones."""
    parts = arguments.split(",")
    model = parts[0] or "b16"
    dataset = parts[1] if len(parts) > 1 and parts[1] else "imagenet2012"
    epochs = parts[2] if len(parts) > 2 else ""
    for value, known in ((model, MODELS), (dataset, DATASETS)):
        if value not in known:
            raise ConfigError(
                f"configs/vit.py:{arguments}: {value!r} is not one of {', '.join(known)}."
            )
    if len(parts) > 3 or not (epochs or "0").isdecimal():
        raise ConfigError(f"configs/vit.py:{arguments}: expected MODEL[,DATASET[,EPOCHS]].")
    return model, dataset, int(epochs) if epochs else None
