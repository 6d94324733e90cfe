"""Every preset's resolved values as text: what `tests/golden/configs` holds.

    python -m tests.preset_texts

writes them anew. A change in a default or a recipe then shows in the diff.
"""

import pathlib

from ml_collections import ConfigDict

from vit_jax.config import default_config, flatten
from vit_jax.config_file import load_config
from vit_jax.recipes.finetuning import TABLE_4
from vit_jax.recipes.models import ALL, RESNETS, TRANSFORMERS
from vit_jax.recipes.pretraining import DATASETS
from vit_jax.recipes.vtab import TASKS

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "configs"

# Config file -> the arguments of each of its presets.
PRESETS = {
    "digits": [""],
    "fashion_mnist": [""],
    "folder": ["photos"],
    "transfer": ["pretrain", "finetune", "scratch"],
    "vit": [f"{model},{dataset}" for dataset in DATASETS for model in TRANSFORMERS]
    + ["l16,imagenet21k,30", "l16,jft300m,7", "r50_l16,jft300m,7"],
    "bit": [f"{model},{dataset}" for dataset in DATASETS for model in RESNETS],
    "finetune": [f"{model},cifar10" for model in ALL]
    + [f"{model},{dataset}" for dataset in TABLE_4 for model in ("b16", "h14")],
    "vtab": [f"{task},l16" for task in TASKS],
}


def load(name: str, arguments: str = "") -> ConfigDict:
    """The config of one preset."""
    return load_config(f"{ROOT / 'configs' / name}.py" + (f":{arguments}" if arguments else ""))


def text_of(name: str) -> str:
    """All presets of a config file: what differs from the defaults, a key a line."""
    defaults = flatten(default_config())
    parts = []
    for arguments in PRESETS[name]:
        config = flatten(load(name, arguments))
        lines = [f"{key} = {config[key]!r}" for key in config if config[key] != defaults[key]]
        parts.append(
            "\n".join([f"--config=configs/{name}.py" + f":{arguments}" * bool(arguments), *lines])
        )
    return "\n\n".join(parts) + "\n"


def defaults_text() -> str:
    """Every key's default."""
    return "".join(f"{key} = {value!r}\n" for key, value in flatten(default_config()).items())


def texts() -> dict[str, str]:
    """File name -> what it has to hold."""
    return {"defaults.txt": defaults_text()} | {f"{name}.txt": text_of(name) for name in PRESETS}


if __name__ == "__main__":
    for file, text in texts().items():
        (GOLDEN / file).write_text(text)
