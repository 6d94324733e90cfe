"""The pretrained weights that have a name here: the paper's models and their successors.

Repositories are timm's on the Hub, which hold the published tensors; their architecture's name and
tag are the repository's.
"""

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vit_jax import hub
from vit_jax.errors import ConfigError
from vit_jax.models import registry
from vit_jax.models.base import as_pair

OWNER = "timm"
# Measured with each file's own preprocessing.
TOP1_SOURCE = "timm's results/results-imagenet.csv, huggingface/pytorch-image-models at 0173a139"
# To fine-tune from: the paper's own weights where they are on the Hub, else the nearest to them.
BEST_STARTS = ("orig_in21k", "augreg_in21k", "goog_in21k")


class Pretrained(NamedTuple):
    """Weights that can be loaded by their model's name and their tag."""

    model: str  # as `create_model` takes it
    tag: str
    timm_name: str  # the architecture and timm's tag
    image_size: int  # pixels, of a square
    data: str  # that they were trained on
    top1: (
        float | None
    )  # per cent, on ImageNet's validation images, see TOP1_SOURCE; None without its head
    source: str  # the paper of the weights
    licence: str

    @property
    def repository(self) -> str:
        """The name on the Hub."""
        return f"{OWNER}/{self.timm_name}"

    @property
    def reference(self) -> str:
        """The same as `load_model` and `config.init` take it."""
        return f"{hub.SCHEME}{self.repository}"


def _group(
    tag: str,
    data: str,
    source: str,
    rows: Sequence[tuple[str, str, int, float | None]],
    licence: str = "apache-2.0",
) -> Iterator[Pretrained]:
    for model, timm_name, image_size, top1 in rows:
        yield Pretrained(model, tag, timm_name, image_size, data, top1, source, licence)


PRETRAINED = (
    *_group(
        "orig_in21k",
        "ImageNet-21k",
        "arXiv 2010.11929",
        rows=(
            ("ViT-B/32", "vit_base_patch32_224.orig_in21k", 224, None),
            ("ViT-B/16", "vit_base_patch16_224.orig_in21k", 224, None),
            ("ViT-L/32", "vit_large_patch32_224.orig_in21k", 224, None),
            ("ViT-L/16", "vit_large_patch16_224.orig_in21k", 224, None),
            ("ViT-H/14", "vit_huge_patch14_224.orig_in21k", 224, None),
            ("R50+ViT-B/16", "vit_base_r50_s16_224.orig_in21k", 224, None),
        ),
    ),
    *_group(
        "orig_in21k_ft_in1k",
        "ImageNet-21k, then ImageNet",
        "arXiv 2010.11929",
        rows=(
            ("ViT-B/16", "vit_base_patch16_224.orig_in21k_ft_in1k", 224, 81.786),
            ("ViT-B/16", "vit_base_patch16_384.orig_in21k_ft_in1k", 384, 84.2),
            ("ViT-L/32", "vit_large_patch32_384.orig_in21k_ft_in1k", 384, 81.51),
            ("R50+ViT-B/16", "vit_base_r50_s16_384.orig_in21k_ft_in1k", 384, 84.976),
        ),
    ),
    *_group(
        "augreg_in21k",
        "ImageNet-21k",
        "arXiv 2106.10270",
        rows=(
            ("ViT-Ti/16", "vit_tiny_patch16_224.augreg_in21k", 224, None),
            ("ViT-S/32", "vit_small_patch32_224.augreg_in21k", 224, None),
            ("ViT-S/16", "vit_small_patch16_224.augreg_in21k", 224, None),
            ("ViT-B/32", "vit_base_patch32_224.augreg_in21k", 224, None),
            ("ViT-B/16", "vit_base_patch16_224.augreg_in21k", 224, None),
            ("ViT-B/8", "vit_base_patch8_224.augreg_in21k", 224, None),
            ("ViT-L/16", "vit_large_patch16_224.augreg_in21k", 224, None),
            ("R+ViT-Ti/16", "vit_tiny_r_s16_p8_224.augreg_in21k", 224, None),
            ("R26+ViT-S/32", "vit_small_r26_s32_224.augreg_in21k", 224, None),
            ("R50+ViT-L/32", "vit_large_r50_s32_224.augreg_in21k", 224, None),
        ),
    ),
    *_group(
        "augreg_in21k_ft_in1k",
        "ImageNet-21k, then ImageNet",
        "arXiv 2106.10270",
        rows=(
            ("ViT-Ti/16", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", 224, 75.454),
            ("ViT-Ti/16", "vit_tiny_patch16_384.augreg_in21k_ft_in1k", 384, 78.424),
            ("ViT-S/32", "vit_small_patch32_224.augreg_in21k_ft_in1k", 224, 75.994),
            ("ViT-S/32", "vit_small_patch32_384.augreg_in21k_ft_in1k", 384, 80.486),
            ("ViT-S/16", "vit_small_patch16_224.augreg_in21k_ft_in1k", 224, 81.384),
            ("ViT-S/16", "vit_small_patch16_384.augreg_in21k_ft_in1k", 384, 83.802),
            ("ViT-B/32", "vit_base_patch32_224.augreg_in21k_ft_in1k", 224, 80.716),
            ("ViT-B/32", "vit_base_patch32_384.augreg_in21k_ft_in1k", 384, 83.35),
            ("ViT-B/16", "vit_base_patch16_224.augreg_in21k_ft_in1k", 224, 84.532),
            ("ViT-B/16", "vit_base_patch16_384.augreg_in21k_ft_in1k", 384, 85.996),
            ("ViT-B/8", "vit_base_patch8_224.augreg_in21k_ft_in1k", 224, 85.798),
            ("ViT-L/16", "vit_large_patch16_224.augreg_in21k_ft_in1k", 224, 85.834),
            ("ViT-L/16", "vit_large_patch16_384.augreg_in21k_ft_in1k", 384, 87.084),
            ("R+ViT-Ti/16", "vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k", 224, 71.798),
            ("R+ViT-Ti/16", "vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k", 384, 75.962),
            ("R26+ViT-S/32", "vit_small_r26_s32_224.augreg_in21k_ft_in1k", 224, 81.864),
            ("R26+ViT-S/32", "vit_small_r26_s32_384.augreg_in21k_ft_in1k", 384, 84.048),
            ("R50+ViT-L/32", "vit_large_r50_s32_224.augreg_in21k_ft_in1k", 224, 84.422),
            ("R50+ViT-L/32", "vit_large_r50_s32_384.augreg_in21k_ft_in1k", 384, 86.182),
        ),
    ),
    *_group(
        "augreg_in1k",
        "ImageNet",
        "arXiv 2106.10270",
        rows=(
            ("ViT-S/16", "vit_small_patch16_224.augreg_in1k", 224, 78.846),
            ("ViT-S/16", "vit_small_patch16_384.augreg_in1k", 384, 81.116),
            ("ViT-B/32", "vit_base_patch32_224.augreg_in1k", 224, 74.894),
            ("ViT-B/32", "vit_base_patch32_384.augreg_in1k", 384, 78.752),
            ("ViT-B/16", "vit_base_patch16_224.augreg_in1k", 224, 79.154),
            ("ViT-B/16", "vit_base_patch16_384.augreg_in1k", 384, 81.102),
        ),
    ),
    *_group(
        "augreg2_in21k_ft_in1k",
        "ImageNet-21k, then ImageNet",
        "arXiv 2106.10270",
        rows=(
            ("ViT-B/16", "vit_base_patch16_224.augreg2_in21k_ft_in1k", 224, 85.096),
            ("ViT-B/8", "vit_base_patch8_224.augreg2_in21k_ft_in1k", 224, 86.218),
        ),
    ),
    *_group(
        "sam_in1k",
        "ImageNet",
        "arXiv 2106.01548",
        rows=(
            ("ViT-B/32", "vit_base_patch32_224.sam_in1k", 224, 73.694),
            ("ViT-B/16", "vit_base_patch16_224.sam_in1k", 224, 80.244),
        ),
    ),
    *_group(
        "dino",
        "ImageNet, no labels",
        "arXiv 2104.14294",
        rows=(
            ("ViT-S/16", "vit_small_patch16_224.dino", 224, None),
            ("ViT-B/16", "vit_base_patch16_224.dino", 224, None),
            ("ViT-B/8", "vit_base_patch8_224.dino", 224, None),
        ),
    ),
    *_group(
        "mae",
        "ImageNet, no labels",
        "arXiv 2111.06377",
        licence="cc-by-nc-4.0",
        rows=(
            ("ViT-B/16", "vit_base_patch16_224.mae", 224, None),
            ("ViT-L/16", "vit_large_patch16_224.mae", 224, None),
            ("ViT-H/14", "vit_huge_patch14_224.mae", 224, None),
        ),
    ),
    *_group(
        "deit_in1k",
        "ImageNet",
        "arXiv 2012.12877",
        rows=(
            ("ViT-Ti/16", "deit_tiny_patch16_224.fb_in1k", 224, 72.172),
            ("ViT-S/16", "deit_small_patch16_224.fb_in1k", 224, 79.844),
            ("ViT-B/16", "deit_base_patch16_224.fb_in1k", 224, 81.992),
            ("ViT-B/16", "deit_base_patch16_384.fb_in1k", 384, 83.106),
        ),
    ),
    *_group(
        "deit3_in1k",
        "ImageNet",
        "arXiv 2204.07118",
        rows=(
            ("ViT-S/16", "deit3_small_patch16_224.fb_in1k", 224, 81.37),
            ("ViT-S/16", "deit3_small_patch16_384.fb_in1k", 384, 83.43),
            ("ViT-B/16", "deit3_base_patch16_224.fb_in1k", 224, 83.786),
            ("ViT-B/16", "deit3_base_patch16_384.fb_in1k", 384, 85.072),
            ("ViT-L/16", "deit3_large_patch16_224.fb_in1k", 224, 84.776),
            ("ViT-L/16", "deit3_large_patch16_384.fb_in1k", 384, 85.812),
            ("ViT-H/14", "deit3_huge_patch14_224.fb_in1k", 224, 85.224),
        ),
    ),
    *_group(
        "deit3_in22k_ft_in1k",
        "ImageNet-21k, then ImageNet",
        "arXiv 2204.07118",
        rows=(
            ("ViT-S/16", "deit3_small_patch16_224.fb_in22k_ft_in1k", 224, 83.074),
            ("ViT-S/16", "deit3_small_patch16_384.fb_in22k_ft_in1k", 384, 84.824),
            ("ViT-B/16", "deit3_base_patch16_224.fb_in22k_ft_in1k", 224, 85.7),
            ("ViT-B/16", "deit3_base_patch16_384.fb_in22k_ft_in1k", 384, 86.738),
            ("ViT-L/16", "deit3_large_patch16_224.fb_in22k_ft_in1k", 224, 86.982),
            ("ViT-L/16", "deit3_large_patch16_384.fb_in22k_ft_in1k", 384, 87.72),
            ("ViT-H/14", "deit3_huge_patch14_224.fb_in22k_ft_in1k", 224, 87.186),
        ),
    ),
    *_group(
        "lvd142m",
        "LVD-142M, no labels",
        "arXiv 2304.07193",
        rows=(
            ("ViT-S/14", "vit_small_patch14_dinov2.lvd142m", 518, None),
            ("ViT-B/14", "vit_base_patch14_dinov2.lvd142m", 518, None),
            ("ViT-L/14", "vit_large_patch14_dinov2.lvd142m", 518, None),
        ),
    ),
    *_group(
        "webli",
        "WebLI, with texts",
        "arXiv 2303.15343",
        rows=(
            ("ViT-B/16", "vit_base_patch16_siglip_224.webli", 224, None),
            ("ViT-B/16", "vit_base_patch16_siglip_256.webli", 256, None),
            ("ViT-L/16", "vit_large_patch16_siglip_256.webli", 256, None),
            ("ViT-So400m/14", "vit_so400m_patch14_siglip_224.webli", 224, None),
        ),
    ),
    *_group(
        "v2_webli",
        "WebLI, with texts",
        "arXiv 2502.14786",
        rows=(
            ("ViT-B/16", "vit_base_patch16_siglip_224.v2_webli", 224, None),
            ("ViT-B/16", "vit_base_patch16_siglip_256.v2_webli", 256, None),
            ("ViT-L/16", "vit_large_patch16_siglip_256.v2_webli", 256, None),
            ("ViT-So400m/14", "vit_so400m_patch14_siglip_224.v2_webli", 224, None),
        ),
    ),
    *_group(
        "goog_in21k",
        "ImageNet-21k",
        "arXiv 2105.01601",
        rows=(
            ("Mixer-B/16", "mixer_b16_224.goog_in21k", 224, None),
            ("Mixer-L/16", "mixer_l16_224.goog_in21k", 224, None),
        ),
    ),
    *_group(
        "goog_in21k_ft_in1k",
        "ImageNet-21k, then ImageNet",
        "arXiv 2105.01601",
        rows=(
            ("Mixer-B/16", "mixer_b16_224.goog_in21k_ft_in1k", 224, 76.602),
            ("Mixer-L/16", "mixer_l16_224.goog_in21k_ft_in1k", 224, 72.054),
        ),
    ),
    *_group(
        "goog_in21k",
        "ImageNet-21k",
        "arXiv 1912.11370",
        rows=(
            ("BiT-R50x1", "resnetv2_50x1_bit.goog_in21k", 224, None),
            ("BiT-R50x3", "resnetv2_50x3_bit.goog_in21k", 224, None),
            ("BiT-R101x1", "resnetv2_101x1_bit.goog_in21k", 224, None),
            ("BiT-R101x3", "resnetv2_101x3_bit.goog_in21k", 224, None),
            ("BiT-R152x2", "resnetv2_152x2_bit.goog_in21k", 224, None),
            ("BiT-R152x4", "resnetv2_152x4_bit.goog_in21k", 224, None),
        ),
    ),
    *_group(
        "goog_in21k_ft_in1k",
        "ImageNet-21k, then ImageNet",
        "arXiv 1912.11370",
        rows=(
            ("BiT-R50x1", "resnetv2_50x1_bit.goog_in21k_ft_in1k", 448, 80.34),
            ("BiT-R50x3", "resnetv2_50x3_bit.goog_in21k_ft_in1k", 448, 84.02),
            ("BiT-R101x1", "resnetv2_101x1_bit.goog_in21k_ft_in1k", 448, 82.342),
            ("BiT-R101x3", "resnetv2_101x3_bit.goog_in21k_ft_in1k", 448, 84.438),
            ("BiT-R152x2", "resnetv2_152x2_bit.goog_in21k_ft_in1k", 448, 84.51),
            ("BiT-R152x4", "resnetv2_152x4_bit.goog_in21k_ft_in1k", 480, 84.916),
        ),
    ),
)


def list_pretrained(pattern: str = "") -> list[Pretrained]:
    """The weights of which the model, the tag or the repository contains or matches `pattern`.

    In upper or lower case; a model's name of timm's or Hugging Face's stands for ours.
    """
    glob = f"*{registry.our_name(pattern)}*".lower()
    return [
        entry
        for entry in PRETRAINED
        if any(
            fnmatch.fnmatchcase(text.lower(), glob)
            for text in (f"{entry.model} {entry.tag}", entry.repository)
        )
    ]


def find_pretrained(model: str, tag: str, image_size: Any = None) -> Pretrained:
    """The weights of that model and tag: of `image_size` if there are, else of the smallest size.

    Raises ConfigError, naming what there is, if there are none.
    """
    model = registry.our_name(model)
    registry.find_architecture(model)
    tags = {entry.tag: None for entry in PRETRAINED if entry.model == model}
    found = [entry for entry in PRETRAINED if (entry.model, entry.tag) == (model, tag)]
    if not found:
        nearest = difflib.get_close_matches(tag, tags, n=1, cutoff=0)
        known = f"; {model} has {', '.join(tags)}" if tags else f": {model} has none here"
        near = f"; the nearest: {nearest[0]}" if nearest else ""
        raise ConfigError(f"pretrained={tag!r} is unknown{near}{known}.")
    size = min(as_pair("image_size", image_size or found[0].image_size))
    return min(found, key=lambda entry: (entry.image_size != size, entry.image_size))


def start_of(model: str) -> str:
    """The weights to fine-tune a model from, as `config.init` takes them; "" if there are none."""
    for tag in BEST_STARTS:
        for entry in PRETRAINED:
            if (entry.model, entry.tag) == (model, tag):
                return entry.reference
    return ""
