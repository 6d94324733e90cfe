"""Hybrids (section 3.1 of arXiv 2010.11929): a Vision Transformer on a ResNet's feature map.

The stem is a post-activation ResNet without its head, or only its root; patches are cut from its
last feature map. "R50+ViT-B/16" has 1×1 patches on a map of stride 16: the paper's third stage
takes over the fourth's depth, (3, 4, 9). Parameters are the ResNet's under `stem/` (see
`resnet.py`) and the Vision Transformer's.
"""

import dataclasses

import jax
from flax import nnx

from vit_jax.models.base import Constrain, unconstrained
from vit_jax.models.resnet import PostActivationUnit, ResNetOptions, Trunk, check_stages
from vit_jax.models.vit import VisionTransformer, ViTOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridOptions(ViTOptions):
    """Everything that defines a hybrid; `patch_size` counts elements of the stem's map."""

    stem_depths: tuple[int, ...]  # units of each stage of the stem; (): the root alone
    stem_width_factor: float = 1.0  # times 64, 128, 256, 512, the widths of the stages
    stem_group_norm_epsilon: float = 0.0  # 0: the reference's 1e-6; timm's is 1e-5
    stem_kernel_epsilon: float = 0.0  # added to kernels' variance; 0: the reference's way

    def __post_init__(self) -> None:
        object.__setattr__(self, "stem_depths", tuple(self.stem_depths))
        check_stages(self, "stem_depths", "stem_width_factor")
        super().__post_init__()

    @property
    def stem(self) -> ResNetOptions:
        """The stem's own options."""
        return ResNetOptions(
            stage_depths=self.stem_depths,
            width_factor=self.stem_width_factor,
            preactivation=False,
            image_size=self.image_size,
            channels=self.channels,
            group_norm_epsilon=self.stem_group_norm_epsilon,
            kernel_epsilon=self.stem_kernel_epsilon,
            num_classes=0,
            dtype=self.dtype,
            remat=self.remat,
        )

    @property
    def stem_stride(self) -> int:
        """Pixels per element of the stem's map."""
        return 4 * 2 ** max(0, len(self.stem_depths) - 1)

    @property
    def stem_channels(self) -> int:
        """Channels of the stem's map."""
        return self.stem.feature_channels

    def macs(self) -> int:
        """Multiply-accumulates of one image's forward pass."""
        return super().macs() + self.stem.trunk_macs()


class Hybrid(VisionTransformer):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32."""

    def __init__(self, options: HybridOptions, rngs: nnx.Rngs):
        super().__init__(options, rngs)
        self.stem = Trunk(options.stem, PostActivationUnit, rngs)

    def embed_patches(self, images: jax.Array, constrain: Constrain = unconstrained) -> jax.Array:
        """Images [B, H, W, C] -> patches of the stem's map [B, N, D], row by row."""
        feature_map, _ = self.stem(images, constrain)
        return self.embedding(feature_map)
