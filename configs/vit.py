"""Pre-training of ViTs and hybrids as in Table 3 of the paper (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/vit.py:b16 --workdir=DIR
    python -m vit_jax.main --config=configs/vit.py:l16,imagenet21k,30 --workdir=DIR \
        --config.data.source=folder:DIR

Arguments: MODEL[,DATASET[,EPOCHS]]; DATASET is imagenet2012 (default), imagenet21k or jft300m, of
which you name your copy: folder:DIR, tar:DIR, tfds:NAME (docs/data.md). EPOCHS is one that the table
has, the longest by default. Where it has no row, the model takes that of the nearest, and says so.

Expected: ViT-B/16 pre-trained on ImageNet for 300 epochs and fine-tuned on it at 384 px reaches
77.91 % (Table 5); on ImageNet-21k for 90 epochs 83.97 %; on JFT-300M for 7 epochs 84.15 %.

The paper does not say how pictures are resized: here as in Big Vision, its authors' code.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.models.registry import model_options
from vit_jax.models.vit import ViTOptions
from vit_jax.recipes.arguments import choose, choose_epochs, split_arguments
from vit_jax.recipes.datasets import PRETRAINING
from vit_jax.recipes.models import TRANSFORMERS
from vit_jax.recipes.starts import big_vision_pixels, pretraining


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
TABLE_3 = {
    "jft300m": {
        "ViT-B/16": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "ViT-B/32": Row((7,), 8e-4, "linear", 0.1, 0.0),
        "ViT-L/32": Row((7,), 6e-4, "linear", 0.1, 0.0),
        "ViT-L/16": Row((7, 14), 4e-4, "linear", 0.1, 0.0),
        "ViT-H/14": Row((14,), 3e-4, "linear", 0.1, 0.0),
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
            "ViT-Ti/16",
            "ViT-S/16",
            "ViT-S/32",
            "ViT-B/8",
            "ViT-B/16",
            "ViT-B/32",
            "ViT-L/16",
            "ViT-L/32",
            "ViT-H/14",
            "R50+ViT-B/16",
            "R50+ViT-B/32",
            "R50+ViT-L/16",
            "R50+ViT-L/32",
            "R26+ViT-S/32",
            "R26+ViT-B/32",
            "R+ViT-Ti/16",
        ),
        IMAGENET,  # The table's "ViT-*".
    ),
}

# For a model without a row: whose it takes.
NEAREST = {
    "ViT-Ti/16": "ViT-B/16",
    "ViT-S/16": "ViT-B/16",
    "ViT-S/32": "ViT-B/32",
    "ViT-B/8": "ViT-B/16",
    "ViT-H/14": "ViT-L/16",
    "R+ViT-Ti/16": "R50+ViT-B/16",
    "R26+ViT-S/32": "R50+ViT-B/32",
    "R26+ViT-B/32": "R50+ViT-B/32",
    "Axial-ViT-B/16": "ViT-B/16",
    "Axial-ViT-B/32": "ViT-B/32",
    "Mixer-B/16": "ViT-B/16",
    "Mixer-B/32": "ViT-B/32",
    "Mixer-L/16": "ViT-L/16",
}


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe of Table 3 for MODEL[,DATASET[,EPOCHS]]."""
    model, dataset, epochs = split_arguments(arguments, "MODEL[,DATASET[,EPOCHS]]")
    name = TRANSFORMERS[choose(arguments, model or "b16", TRANSFORMERS)]
    dataset = choose(arguments, dataset or "imagenet2012", PRETRAINING)
    rows = TABLE_3[dataset]
    owner = name if name in rows else NEAREST[name]
    row = rows[owner]

    config = pretraining(name, PRETRAINING[dataset])
    big_vision_pixels(config)
    if owner != name:
        config.note = f"Table 3 has no row for {name} on {dataset}: this is the one of {owner}."
    config.batch_size = 4096
    config.total_epochs = choose_epochs(arguments, epochs, row.epochs)
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
