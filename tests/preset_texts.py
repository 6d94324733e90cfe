"""Every preset's resolved values as text: what `tests/golden/configs` holds.

    python -m tests.preset_texts

writes them anew. A change in a default or a recipe then shows in the diff.
"""

import ast
import pathlib

from ml_collections import ConfigDict

from configs import deit, deit3, few_labels, mae
from configs.augreg import DEFAULT_LEVELS, LEVELS
from configs.vtab import TASKS
from tests.preset_sources import row_of, where
from vit_jax.config import default_config, flatten, resolved
from vit_jax.config_file import load_config
from vit_jax.objectives.masked_patches import TARGETS
from vit_jax.recipes.datasets import FINETUNING, PRETRAINING
from vit_jax.recipes.models import ALL, RESNETS, TRANSFORMERS

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "configs"

AUGREG_MODELS = DEFAULT_LEVELS["imagenet2012"]

# Config file -> the arguments of each of its presets.
PRESETS = {
    "digits": [""],
    "fashion_mnist": [""],
    "folder": ["photos"],
    "augmentation": ["plain", "augmented"],
    "transfer": ["pretrain", "finetune", "scratch"],
    "vit": [f"{model},{dataset}" for dataset in PRETRAINING for model in TRANSFORMERS]
    + ["l16,imagenet21k,30", "l16,jft300m,7", "r50_l16,jft300m,7"],
    "bit": [f"{model},{dataset}" for dataset in PRETRAINING for model in RESNETS]
    + [f"r50x1,{dataset},sgd" for dataset in PRETRAINING]
    + [f"r50x1,{dataset},hyperrule" for dataset in FINETUNING],
    "augreg": [f"{model},{dataset}" for dataset in DEFAULT_LEVELS for model in AUGREG_MODELS]
    + [f"b16,imagenet2012,{level}" for level in LEVELS]
    + [f"b16,imagenet21k,,{part}" for part in ("wd0.03", "drop", "wd0.1+drop", "wd0.03+drop")],
    "mixer": ["300", "60"],
    "plain_vit": ["90", "150", "300"],
    "deit": list(deit.MODELS),
    "distill": [f"{model},deit" for model in deit.MODELS] + ["r50x1,patient"],
    "few_labels": [
        *(*few_labels.OBJECTIVES, few_labels.TEACHER),
        *("finetune,100", "scratch,100,1", "distillation,100,2"),
    ],
    "mae": [f"{model},{stage}" for model in mae.MODELS for stage in mae.STAGES],
    "masked_patches": [f"{model},{target}" for model in ("b16", "r50_b16") for target in TARGETS],
    "deit3": [f"{model},{epochs}" for epochs in deit3.TABLE for model in deit3.MODELS]
    + [
        f"{model},{epochs},finetune"
        for epochs in deit3.TABLE
        for model in deit3.MODELS
        if model != "s16" or epochs in deit3.ON_IMAGENET_21K
    ]
    + [f"{model},{epochs},finetune384" for epochs in deit3.TABLE for model in deit3.AT_384],
    "scaling_vit": ["g14", "G14"],
    "sam": ["s32", "s16", "b32", "b16"],
    "finetune": [f"{model},cifar10" for model in ALL]
    + [f"{model},{dataset}" for dataset in FINETUNING for model in ("b16", "h14")]
    + ["b16,imagenet2012,384", "l16,imagenet2012,384+drop"]
    + [f"{model},cifar10,drop" for model in ("l16", "h14", "r50_b16", "r50_l32")],
    "vtab": [f"{task},l16" for task in TASKS],
}


def load(name: str, arguments: str = "") -> ConfigDict:
    """The config of one preset."""
    return load_config(str(path_of(name)) + f":{arguments}" * bool(arguments))


def path_of(name: str) -> pathlib.Path:
    """A config file."""
    return ROOT / "configs" / f"{name}.py"


def text_of(name: str) -> str:
    """All presets of a config file: what differs from the defaults, a key a line, with its source."""
    parts = ["# " + ast.get_docstring(ast.parse(path_of(name).read_text())).splitlines()[0]]
    parts += [f"# Sources: {where(name)}; see tests/preset_sources.py."] if where(name) else []
    for arguments in PRESETS[name]:
        values = own_values(name, arguments)
        lines = [f"{key} = {values[key]!r}{comment(name, arguments, key)}" for key in values]
        parts.append(
            "\n".join([f"--config=configs/{name}.py" + f":{arguments}" * bool(arguments), *lines])
        )
    return "\n\n".join(parts) + "\n"


def own_values(name: str, arguments: str) -> dict:
    """A preset's values that differ from the defaults."""
    defaults, config = resolved(default_config()), resolved(load(name, arguments))
    return {key: value for key, value in config.items() if value != defaults[key]}


def comment(name: str, arguments: str, key: str) -> str:
    """Where a value comes from, as a comment; "" in recipes of our own."""
    return f"  # {row_of(name, arguments, key)[-1]}" if where(name) else ""


def defaults_text() -> str:
    """Every key's default."""
    return "".join(f"{key} = {value!r}\n" for key, value in flatten(default_config()).items())


def texts() -> dict[str, str]:
    """File name -> what it has to hold."""
    return {"defaults.txt": defaults_text()} | {f"{name}.txt": text_of(name) for name in PRESETS}


if __name__ == "__main__":
    for file, text in texts().items():
        (GOLDEN / file).write_text(text)
