"""Sharpness-aware training on ImageNet without augmentation: GSAM (arXiv 2203.08065).

    python -m vit_jax.main --config=configs/sam.py:b16 --workdir=DIR

Arguments: [MODEL], s32 s16 b32 (default) b16. 300 epochs of two gradients an update.

SAM itself (2010.01412, for ViTs 2106.01548) is GSAM with one radius and alpha 0; choose the radius:
    --config.optimizer.sharpness.rho=RHO --config.optimizer.sharpness.rho_min=RHO \
        --config.optimizer.sharpness.alpha=0

Expected: no figure of this recipe is at hand; timm measures the published SAM weights at 80.25 %
(B/16) and 73.70 % (B/32).

Every value is that of the authors' vit_i1k_gsam_no_aug.py in Big Vision. The radius belongs to each
worker's share of the batch there (gsam.py, "Per-worker perturbation", averaged by train.py's pmean
over devices), and so here. How many workers there were is not published: 32, 128 images each, is an
assumption; --config.optimizer.sharpness.shares=1 perturbs by the whole batch.
"""

from ml_collections import ConfigDict

from vit_jax.models.registry import model_options
from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.models import TRANSFORMERS
from vit_jax.recipes.starts import big_vision_pixels, held_out, pretraining

MODELS = ("s32", "s16", "b32", "b16")


def get_config(arguments: str = "b32") -> ConfigDict:
    """The recipe for MODEL."""
    model = choose(arguments, arguments or "b32", MODELS)
    config = pretraining(TRANSFORMERS[model], IMAGENET)
    big_vision_pixels(config)
    config.batch_size = 4096
    config.total_epochs = 300.0
    config.warmup_steps = 10_000
    config.objective.loss = "sigmoid"
    held_out(config, train_percent=99)

    config.model.pooling = "average"
    config.model.head_bias = -10.0
    config.model.position_std = model_options(config.model.name).width ** -0.5

    config.optimizer.learning_rate = 3e-3
    config.optimizer.weight_decay = 1e-3 / 3e-3  # 1e-3, not multiplied by the rate; the paper: 0.3.
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "linear"
    config.schedule.end = 3e-5  # A hundredth of the peak.
    # The radius follows the rate from 0.6 at its peak to 0.1 at the end.
    config.optimizer.sharpness.rho = 0.6
    config.optimizer.sharpness.rho_min = 0.1
    config.optimizer.sharpness.alpha = 0.6
    config.optimizer.sharpness.shares = 32  # Assumed: as many workers.
    return config
