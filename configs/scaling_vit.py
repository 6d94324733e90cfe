"""Scaling Vision Transformers: ViT-g/14 and ViT-G/14 on JFT-3B (arXiv 2106.04560).

    python -m vit_jax.main --config=configs/scaling_vit.py:g14 --workdir=DIR \
        --config.data.source=folder:DIR

Arguments: [MODEL], g14 (default, 1.0 billion parameters) or G14 (1.8 billion), which has the same
recipe. JFT-3B is not public: name your own data; its classes give the head.

Expected: ViT-G/14 fine-tuned on ImageNet reaches 90.45 %; VTAB 78.29 ± 0.53 %.

Every value is that of the authors' train_vit_g.py in Big Vision. The rate falls with the root of
the time, so that the run may be prolonged; the last 50,000 updates bring it to 0.
"""

from ml_collections import ConfigDict

from vit_jax.models.registry import model_options
from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import Dataset
from vit_jax.recipes.starts import big_vision_pixels, pretraining

MODELS = {"g14": "ViT-g/14", "G14": "ViT-G/14"}
JFT_3B = Dataset("", 3_000_000_000, 29_593, "")  # About 3 billion images.


def get_config(arguments: str = "g14") -> ConfigDict:
    """The recipe for MODEL."""
    config = pretraining(MODELS[choose(arguments, arguments or "g14", MODELS)], JFT_3B)
    big_vision_pixels(config)
    config.batch_size = 16_384
    config.total_steps = 1_000_000
    config.warmup_steps = 10_000
    config.cooldown_steps = 50_000
    config.eval_every_epochs = 0.0
    config.eval_every_steps = 10_000
    config.objective.loss = "sigmoid"

    config.model.pooling = "attention"
    config.model.head_bias = -10.0
    config.model.position_std = model_options(config.model.name).width ** -0.5

    config.optimizer.name = "adafactor"
    config.optimizer.b2 = 0.999  # The highest that it grows to.
    config.optimizer.momentum = 0.9
    config.optimizer.momentum_dtype = "bfloat16"
    config.optimizer.learning_rate = 8e-4
    # 0.03, and 3.0 for the head.
    config.optimizer.weight_decay = 0.03
    config.optimizer.decay_multipliers = (("^head/kernel$", 100.0), ("kernel$", 1.0))
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "rsqrt"
    config.schedule.timescale = 10_000.0
    return config
