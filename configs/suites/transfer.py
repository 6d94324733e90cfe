"""The paper's transfer sets, fine-tuned as in Table 4 (arXiv 2010.11929).

    python -m vit_jax.suite configs/suites/transfer.py --workdir=DIR --sweep [--config.init=WEIGHTS]

Images come from TFDS; see configs/finetune.py, whose tasks these are. With --sweep each run chooses
its learning rate on a part of the training images first, as the paper does.

Expected, from ViT-B/16 pre-trained on ImageNet-21k (Table 5): ImageNet 83.97 %, CIFAR-10 98.95 %,
CIFAR-100 91.67 %, Pets 94.43 %, Flowers 99.38 %.
"""

SUITE = {
    "imagenet": {"imagenet2012": "configs/finetune.py:b16,imagenet2012,384"},
    "small": {
        task: f"configs/finetune.py:b16,{task}"
        for task in ("cifar10", "cifar100", "oxford_iiit_pet", "oxford_flowers102")
    },
}
