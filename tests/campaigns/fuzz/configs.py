"""Config overrides by chance, as the command line gives them to a dry run."""

import pathlib
import random

from tests.campaigns.fuzz.mutations import VALUES, mutate
from vit_jax import train
from vit_jax.config import flatten
from vit_jax.config_file import load_config

CONFIG = "tests/tiny.py"
# Text that a key may take, as it is or changed.
TEXTS = (
    *(
        "adamw",
        "sgd",
        "lamb",
        "cosine",
        "linear",
        "auto",
        "latest",
        "train[:10%]",
        "train+test",
        "",
    ),
    *("center(8, 8)", "resize(8)", "pad(1)", "randaug(2, 9) | flip", "random_resized(8, 0.1)"),
    *("classification", "masked_autoencoder", "regression", "ViT-B/16", "BiT-R50x1", "Mixer-B/16"),
    *(
        "knn(5)",
        "fewshot(1, 5)",
        "eval",
        "-eval/loss",
        ".*",
        "(",
        "[a-z",
        "blocks/0[0-9]",
        "(?P<x>",
    ),
    *(
        "digits",
        "fake",
        "folder:.",
        "manifest:x.csv",
        "tar:*.tar",
        "idx:/dev",
        "tfds:mnist",
        "~",
        "$X",
    ),
    *(
        "(1, 2)",
        "(0.5,)",
        "((1, 2), 3)",
        "1e400",
        "-0",
        "0x10",
        "1_000",
        "True",
        "None",
        "[]",
        "9" * 400,
    ),
)


NUMBERS = {
    bool: ("true", "false"),
    int: ("0", "1", "2", "3", "8", "16", "64", "1000", "-1"),
    float: ("0", "0.1", "0.5", "1.0", "2", "1e-3", "-1", "100"),
}


def value(rng: random.Random, present: object) -> str:
    """A text for a key: that of its value changed, a text that some key takes, or an odd value."""
    if type(present) in NUMBERS and rng.random() < 0.6:
        return rng.choice(NUMBERS[type(present)])
    match rng.randrange(4):
        case 0:
            text = str(present) or "x"
            return mutate(text.encode(), rng)[0].decode(errors="replace")
        case 1 | 2:
            return rng.choice(TEXTS)
    return str(rng.choice(VALUES))


class ConfigOverrides:
    """A dry run with one to three keys set: it can be done, or an error of one sentence."""

    max_growth_mib = 1024

    def __init__(self, folder: pathlib.Path):
        """Takes nothing of `folder`."""
        del folder
        self.present = flatten(load_config(CONFIG))

    def trial(self, rng: random.Random, folder: pathlib.Path) -> str:
        keys = rng.sample(list(self.present), rng.choice((1, 1, 2, 3)))
        overrides = [f"{key}={value(rng, self.present[key])}" for key in keys]
        train.run(load_config(CONFIG, overrides), str(folder), dry_run=True)
        return "other"
