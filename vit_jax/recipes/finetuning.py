"""Fine-tuning as in section 4.1, appendix B.1.1 and Table 4 of arXiv 2010.11929, as data.

SGD with momentum, batch 512, cosine decay, no weight decay, gradients clipped at norm 1, a fresh
linear head, softmax cross-entropy. The momentum is bfloat16, as in the authors' code.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.errors import ConfigError
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.registry import model_options
from vit_jax.recipes.arguments import choose
from vit_jax.recipes.models import ALL

BATCH_SIZE = 512
SMALL_RATES = (0.001, 0.003, 0.01, 0.03)
IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)
IMAGENET_AVERAGING = 0.9999  # Polyak's, with the higher resolution (appendix B.1.1).


class Task(NamedTuple):
    """One row of Table 4, with what the table leaves to others."""

    source: str
    num_train_examples: int
    num_classes: int
    eval_split: str
    steps: int
    warmup_steps: int  # The authors' code; the paper names none.
    learning_rate: float  # One of `rates`: Big Vision's re-run of ViT-B/32 chose it.
    rates: tuple[float, ...]
    train_percent: int  # To train on in the sweep; the rest is the paper's development split.


TABLE_4 = {
    "imagenet2012": Task(
        *("tfds:imagenet2012", 1_281_167, 1_000, "validation"),
        *(20_000, 500, 0.03, IMAGENET_RATES, 99),
    ),
    "cifar100": Task(
        *("tfds:cifar100", 50_000, 100, "test", 10_000, 500, 0.01, SMALL_RATES, 98),
    ),
    "cifar10": Task(
        *("tfds:cifar10", 50_000, 10, "test", 10_000, 500, 0.003, SMALL_RATES, 98),
    ),
    "oxford_iiit_pet": Task(
        *("tfds:oxford_iiit_pet", 3_680, 37, "test", 500, 100, 0.003, SMALL_RATES, 90),
    ),
    "oxford_flowers102": Task(
        *("tfds:oxford_flowers102", 1_020, 102, "test", 500, 100, 0.003, SMALL_RATES, 90),
    ),
}
# A folder of one's own is taken for a small dataset, like the last two.
FOLDER = "folder"
FOLDER_TASK = Task("", 0, 0, "", 500, 100, 0.003, SMALL_RATES, 90)


def finetuning(arguments: str) -> ConfigDict:
    """The recipe of Table 4 for MODEL[,DATASET], where DATASET may be folder:DIR."""
    model, _, dataset = arguments.partition(",")
    name = ALL[choose(arguments, model or "b16", ALL)]
    task = named_task(arguments, dataset or "cifar10")
    config = from_weights(name)
    config.total_steps = task.steps
    config.warmup_steps = task.warmup_steps
    config.eval_every_steps = task.steps // 10
    config.optimizer.learning_rate = task.learning_rate
    config.data.source = task.source
    config.data.num_train_examples = task.num_train_examples
    config.data.eval_split = task.eval_split
    config.model.num_classes = task.num_classes
    config.model.image_size = resolution(name, 384)
    if dataset == "imagenet2012":
        config.model.image_size = resolution(name, 512)
        config.ema_decay = IMAGENET_AVERAGING
    config.sweep.learning_rates = task.rates
    config.sweep.train_split = f"train[:{task.train_percent}%]"
    config.sweep.eval_split = f"train[{task.train_percent}%:]"
    return config


def named_task(arguments: str, dataset: str) -> Task:
    """The task of a name in Table 4, or of folder:DIR; raises ConfigError for any other."""
    kind, _, folder = dataset.partition(":")
    if kind != FOLDER:
        return TABLE_4[choose(arguments, dataset, [*TABLE_4, "folder:DIR"])]
    if not folder:
        raise ConfigError(f"{arguments!r}: name the folder: MODEL,folder:DIR.")
    return FOLDER_TASK._replace(source=dataset)


def from_weights(name: str) -> ConfigDict:
    """What all fine-tuning shares; `config.init` is the name under which the file is published."""
    config = default_config()
    config.init = name.replace("/", "_").replace("BiT-R", "BiT-M-R") + ".npz"
    config.model.name = name
    config.model.dtype = "bfloat16"
    config.batch_size = BATCH_SIZE
    config.checkpoint_every_steps = 500
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.momentum_dtype = "bfloat16"
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "cosine"
    return config


def resolution(name: str, size: int) -> int:
    """The least image size from `size` on that the model's patches divide: 518 for ViT-H/14.

    A Mixer's size is fixed by its parameters.
    """
    options = model_options(name)
    if isinstance(options, MixerOptions):
        return options.image_size[0]
    stride = options.image_size[0] // options.grid[0] if hasattr(options, "grid") else 1
    return -(-size // stride) * stride
