"""The starts of recipes: a config with its data and model, and no number of the recipe's own."""

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.model_file import AREA
from vit_jax.recipes.datasets import Dataset
from vit_jax.weights.pretrained import start_of


def pretraining(name: str, data: Dataset) -> ConfigDict:
    """A model on a dataset at 224 px, evaluated on centre crops after each epoch."""
    config = default_config()
    config.eval_every_epochs = 1.0
    config.checkpoint_every_steps = 1_000
    config.data.source = data.source
    config.data.num_train_examples = data.num_train_examples
    config.data.eval_split = data.eval_split
    config.data.eval_crop = "center"
    config.model.name = name
    config.data.num_classes = data.num_classes
    config.model.image_size = 224
    config.model.dtype = "bfloat16"
    return config


def big_vision_pixels(config: ConfigDict) -> None:
    """Crops resized without antialiasing in training, pictures by area in evaluation.

    As get_resize and get_resize_small do in Big Vision's pp/ops_image.py (at 4a12790).
    """
    config.data.antialias = False
    config.data.eval_interpolation = AREA


def held_out(config: ConfigDict, *, train_percent: int) -> None:
    """Trains on a part of the training split; Big Vision's recipes were chosen on the rest."""
    config.data.train_split = f"train[:{train_percent}%]"
    config.data.num_train_examples = round(config.data.num_train_examples * train_percent / 100)


def finetuning(name: str, data: Dataset) -> ConfigDict:
    """A model from its weights, on a dataset.

    `config.init` names them on the Hub; a model whose weights are not there has the published file's
    name, in the current directory. Pictures are resized without antialiasing, as in
    input_pipeline.py of vision_transformer and of Big Transfer.
    """
    config = default_config()
    config.data.antialias = False
    config.init = start_of(name) or name.replace("/", "_").replace("BiT-R", "BiT-M-R") + ".npz"
    config.checkpoint_every_steps = 500
    config.data.source = data.source
    config.data.columns = data.columns
    config.data.num_train_examples = data.num_train_examples
    config.data.eval_split = data.eval_split
    config.model.name = name
    config.data.num_classes = data.num_classes
    config.model.dtype = "bfloat16"
    return config
