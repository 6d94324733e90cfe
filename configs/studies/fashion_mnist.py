"""Few-shot accuracy of a small ViT, hybrid and ResNet against pre-training size, on a CPU.

    python -m vit_jax.study fashion_mnist --workdir=runs/study

Figure 4 of the paper in small: each model is trained on more and more images of Fashion-MNIST for the
same number of updates; then a linear classifier of five images a class is fitted to its features.
Debian and Ubuntu have the files: `apt install dataset-fashion-mnist`.
"""

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.studies.definition import Study

ENCODER = (
    "model.width=96",
    "model.num_heads=3",
    "model.mlp_width=192",
    "model.pooling=average",
    "model.position_std=0.5",
)


def get_config() -> ConfigDict:
    """What all cells share; flips and ±2-pixel shifts."""
    config = default_config()
    config.data.source = "idx:/usr/share/datasets/fashion-mnist"
    config.data.train_crop = "pad(2)"
    config.model.image_size = 28
    config.model.channels = 1
    config.batch_size = 128
    config.total_steps = 300
    config.warmup_steps = 30
    config.log_every_steps = 100
    config.checkpoint_every_steps = 100
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    config.evaluators = "classification | fewshot(shots=(5,), train_split='train[:500]')"
    return config


def get_study() -> Study:
    """Three models, four sizes, one seed: twelve runs of 300 updates."""
    return Study(
        title="Few-shot accuracy against pre-training size, Fashion-MNIST",
        config="configs/studies/fashion_mnist.py",
        models={
            "ViT": ("model.name=ViT-Ti/7", "model.depth=4", *ENCODER),
            "hybrid": (
                "model.name=R+ViT-Ti/16",
                "model.stem_depths=(1,)",
                "model.stem_width_factor=0.5",
                "model.patch_size=1",
                "model.depth=1",
                *ENCODER,
            ),
            "ResNet": (
                "model.name=BiT-R50x1",
                "model.stage_depths=(1,1,1)",
                "model.width_factor=0.5",
            ),
        },
        sizes=(500, 2_000, 10_000, 60_000),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
        notes=(
            "Five labelled images a class decide, on features of a model that was trained on so many. "
            "These images are of the classes that it was trained on: it says how good features become "
            "with data, not how they transfer. One seed, one recipe, 300 updates for all: no model is "
            "at its best, and differences below a few percent say nothing."
        ),
    )
