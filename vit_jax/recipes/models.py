"""Short names of the models, as in `configs/vit.py:b16`, and the image sizes that fit them."""

from vit_jax.models import registry
from vit_jax.models.mixer import MixerOptions

TRANSFORMERS = {
    "ti16": "ViT-Ti/16",
    "s16": "ViT-S/16",
    "s32": "ViT-S/32",
    "b8": "ViT-B/8",
    "b16": "ViT-B/16",
    "b32": "ViT-B/32",
    "l16": "ViT-L/16",
    "l32": "ViT-L/32",
    "h14": "ViT-H/14",
    "r_ti16": "R+ViT-Ti/16",
    "r26_s32": "R26+ViT-S/32",
    "r26_b32": "R26+ViT-B/32",
    "r50_b16": "R50+ViT-B/16",
    "r50_b32": "R50+ViT-B/32",
    "r50_l16": "R50+ViT-L/16",
    "r50_l32": "R50+ViT-L/32",
    "axial_b16": "Axial-ViT-B/16",
    "axial_b32": "Axial-ViT-B/32",
    "mixer_b16": "Mixer-B/16",
    "mixer_b32": "Mixer-B/32",
    "mixer_l16": "Mixer-L/16",
}
# r50x1 -> BiT-R50x1, v1_r50x1 -> BiT-v1-R50x1, ...
RESNETS = {
    name.removeprefix("BiT-").replace("-", "_").lower(): name for name in registry.RESNETS
} | {"axial_r50": "AxialResNet50"}
ALL = TRANSFORMERS | RESNETS


def resolution(name: str, size: int) -> int:
    """The largest image size up to `size` that the model's patches divide: 378 for ViT-H/14 at 384.

    The reference's patches leave out what is over.
    A Mixer's size is fixed by its parameters.
    """
    options = registry.model_options(name)
    if isinstance(options, MixerOptions):
        return options.image_size[0]
    stride = options.image_size[0] // options.grid[0] if hasattr(options, "grid") else 1
    return size // stride * stride
