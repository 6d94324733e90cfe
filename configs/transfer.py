"""What pre-training is worth: six kinds of clothes, then four others from 20 images, larger.

    python -m vit_jax.main --config=configs/transfer.py:pretrain --workdir=runs/pretrain
    python -m vit_jax.main --config=configs/transfer.py:finetune --workdir=runs/finetune
    python -m vit_jax.main --config=configs/transfer.py:scratch --workdir=runs/scratch

Arguments: RUN[,SEED]. Fashion-MNIST from `apt install dataset-fashion-mnist`: T-shirts, trousers,
pullovers, dresses, bags and boots at 28×28 in 1,000 steps; then coats, sandals, shirts and sneakers
at 42×42, from the weights in runs/pretrain or from scratch, in 200 steps on the same 20 images.
The seed also chooses these images. Each is measured on all 4,000 test images of its classes.

Expected: see README.md.
"""

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.recipes.fashion_mnist import small_vit

FIRST_CLASSES, OTHER_CLASSES = ("0", "1", "2", "3", "8", "9"), ("4", "5", "6", "7")
NUM_IMAGES = 20


def get_config(arguments: str = "pretrain") -> ConfigDict:
    """One of the three runs, RUN[,SEED]."""
    run, _, seed = arguments.partition(",")
    if run not in RUNS or not (seed or "0").isdecimal():
        raise ConfigError(f"{arguments!r}: expected RUN[,SEED], RUN one of {', '.join(RUNS)}.")
    config = small_vit()
    config.seed = int(seed or 0)
    RUNS[run](config)
    return config


def pretrain(config: ConfigDict) -> None:
    """36,000 images of six classes."""
    config.data.classes = FIRST_CLASSES
    config.data.train_crop = "inception(0.3, 1)"
    config.total_steps = 1_000
    config.warmup_steps = 200


def few_images(config: ConfigDict) -> None:
    """Twenty images of four other classes, at a higher resolution."""
    first = NUM_IMAGES * config.seed
    config.data.classes = OTHER_CLASSES
    config.data.train_split = f"train[{first}:{first + NUM_IMAGES}]"
    config.data.train_crop = "inception(0.6, 1)"
    config.model.image_size = 42
    config.batch_size = NUM_IMAGES
    config.total_steps = 200
    config.warmup_steps = 20


def finetune(config: ConfigDict) -> None:
    """As the paper fine-tunes: SGD with momentum, no weight decay."""
    few_images(config)
    config.init = "runs/pretrain"
    config.optimizer.name = "sgd"
    config.optimizer.weight_decay = 0.0
    config.optimizer.learning_rate = 0.01


def scratch(config: ConfigDict) -> None:
    """The better of the rates 1e-3, 3e-3 and 1e-2 for seed 0."""
    few_images(config)
    config.optimizer.learning_rate = 3e-3


RUNS = {"pretrain": pretrain, "finetune": finetune, "scratch": scratch}
