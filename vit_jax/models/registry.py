"""Architectures by the paper's names: "ViT-B/16" -> the options that define it.

A new variant of a family is one line in its table here; a new family, one in `FAMILIES`.
"""

import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.kinds import SHOWN, shown
from vit_jax.models.axial import AxialResNet, AxialResNetOptions, AxialViT, AxialViTOptions
from vit_jax.models.base import ImageClassifier, ModelOptions
from vit_jax.models.hybrid import Hybrid, HybridOptions
from vit_jax.models.mixer import Mixer, MixerOptions
from vit_jax.models.resnet import ResNet, ResNetOptions
from vit_jax.models.vit import VisionTransformer, ViTOptions

# Table 1 of the paper (B, L, H) and its Figure 4 (b: B with all widths halved); Ti and S from its
# reference code; g and G from arXiv 2106.04560; M, So400m and e from Big Vision's models/vit.py.
VIT_SIZES = {
    "Ti": {"width": 192, "depth": 12, "mlp_width": 768, "num_heads": 3},
    "S": {"width": 384, "depth": 12, "mlp_width": 1536, "num_heads": 6},
    "b": {"width": 384, "depth": 12, "mlp_width": 1536, "num_heads": 12},
    "M": {"width": 512, "depth": 12, "mlp_width": 2048, "num_heads": 8},
    "B": {"width": 768, "depth": 12, "mlp_width": 3072, "num_heads": 12},
    "L": {"width": 1024, "depth": 24, "mlp_width": 4096, "num_heads": 16},
    "So400m": {"width": 1152, "depth": 27, "mlp_width": 4304, "num_heads": 16},
    "H": {"width": 1280, "depth": 32, "mlp_width": 5120, "num_heads": 16},
    "g": {"width": 1408, "depth": 40, "mlp_width": 6144, "num_heads": 16},
    "G": {"width": 1664, "depth": 48, "mlp_width": 8192, "num_heads": 16},
    "e": {"width": 1792, "depth": 56, "mlp_width": 15360, "num_heads": 16},
}
ABSTRACT_MODELS = 100  # That are kept: tracing one takes up to a second.
VIT_NAME = re.compile(rf"ViT-({'|'.join(VIT_SIZES)})/(\d+)")


def vit_defaults(name: str) -> dict[str, Any]:
    """The options that a name such as "ViT-B/16" stands for; any patch size will do."""
    size, patch_size = VIT_NAME.fullmatch(name).groups()
    return {**VIT_SIZES[size], "patch_size": int(patch_size)}


VITS = {
    name: vit_defaults(name)
    for name in (
        "ViT-Ti/16",
        "ViT-S/32",
        "ViT-S/16",
        "ViT-b/32",
        "ViT-B/32",
        "ViT-B/16",
        "ViT-B/8",
        "ViT-L/32",
        "ViT-L/16",
        "ViT-H/14",
        "ViT-g/14",
        "ViT-G/14",
    )
}

# Section 3.1 of the paper, and arXiv 2106.10270 (R+Ti, R26). The number in the name is the pixels
# per patch, except for R+ViT-Ti/16: 8×8 patches on a map of stride 4.
HYBRIDS = {
    "R+ViT-Ti/16": {**VIT_SIZES["Ti"], "stem_depths": (), "patch_size": 8},
    "R26+ViT-S/32": {**VIT_SIZES["S"], "stem_depths": (2, 2, 2, 2), "patch_size": 1},
    "R26+ViT-B/32": {**VIT_SIZES["B"], "stem_depths": (2, 2, 2, 2), "patch_size": 1},
    "R50+ViT-B/32": {**VIT_SIZES["B"], "stem_depths": (3, 4, 6, 3), "patch_size": 1},
    "R50+ViT-B/16": {**VIT_SIZES["B"], "stem_depths": (3, 4, 9), "patch_size": 1},
    "R50+ViT-L/32": {**VIT_SIZES["L"], "stem_depths": (3, 4, 6, 3), "patch_size": 1},
    "R50+ViT-L/16": {**VIT_SIZES["L"], "stem_depths": (3, 4, 9), "patch_size": 1},
}

# Units per stage (arXiv 1912.11370), and each depth with its width factors.
RESNET_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
RESNET_WIDTHS = {50: (1, 2, 3), 101: (1, 3), 152: (1, 2, 4), 200: (3,)}
RESNETS = {
    f"{form}-R{depth}x{width}": {
        "stage_depths": RESNET_DEPTHS[depth],
        "width_factor": width,
        "preactivation": preactivation,
    }
    for form, preactivation in {"BiT": True, "BiT-v1": False}.items()
    for depth, widths in RESNET_WIDTHS.items()
    for width in widths
}

# Appendix D.6 of the paper.
AXIAL_VITS = {
    "Axial-ViT-B/32": {**VIT_SIZES["B"], "patch_size": 32},
    "Axial-ViT-B/16": {**VIT_SIZES["B"], "patch_size": 16},
}
AXIAL_RESNETS = {"AxialResNet50": {"stage_depths": RESNET_DEPTHS[50]}}

# Table 1 of arXiv 2105.01601.
MIXER_SIZES = {
    "B": {"width": 768, "depth": 12, "token_mlp_width": 384, "mlp_width": 3072},
    "L": {"width": 1024, "depth": 24, "token_mlp_width": 512, "mlp_width": 4096},
}
MIXERS = {
    "Mixer-B/32": {**MIXER_SIZES["B"], "patch_size": 32},
    "Mixer-B/16": {**MIXER_SIZES["B"], "patch_size": 16},
    "Mixer-L/16": {**MIXER_SIZES["L"], "patch_size": 16},
}


# The words of timm's and Hugging Face's names for the sizes of ViTs.
FOREIGN_SIZES = {
    "tiny": "Ti",
    "small": "S",
    "medium": "M",
    "base": "B",
    "large": "L",
    "so400m": "So400m",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
}
# vit_base_patch16_384, google/vit-base-patch16-224-in21k, deit_tiny_patch16_224: plain ViTs all.
FOREIGN_VIT = re.compile(
    rf"(?:\w+/)?(?:vit|deit)[_-](?P<size>{'|'.join(FOREIGN_SIZES)})[_-]patch(?P<patch>\d+)"
    r"(?:[_-](?P<pixels>\d+))?(?:-in21k)?"
)
# timm's other names, before the image size.
FOREIGN = {
    "vit_tiny_r_s16_p8": "R+ViT-Ti/16",
    "vit_small_r26_s32": "R26+ViT-S/32",
    "vit_base_r26_s32": "R26+ViT-B/32",
    "vit_base_r50_s16": "R50+ViT-B/16",
    "vit_large_r50_s32": "R50+ViT-L/32",
    "mixer_b32": "Mixer-B/32",
    "mixer_b16": "Mixer-B/16",
    "mixer_l16": "Mixer-L/16",
} | {
    f"resnetv2_{name.removeprefix('BiT-R')}_bit": name
    for name in RESNETS
    if name.startswith("BiT-R")
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A family's module and options class, with the options that a name stands for."""

    module: Callable[[Any, nnx.Rngs], ImageClassifier]
    options_class: type[ModelOptions]
    defaults: dict[str, Any]


FAMILIES = (
    (VisionTransformer, ViTOptions, VITS),
    (Hybrid, HybridOptions, HYBRIDS),
    (ResNet, ResNetOptions, RESNETS),
    (AxialViT, AxialViTOptions, AXIAL_VITS),
    (AxialResNet, AxialResNetOptions, AXIAL_RESNETS),
    (Mixer, MixerOptions, MIXERS),
)
ARCHITECTURES = {
    name: Architecture(module, options_class, defaults)
    for module, options_class, variants in FAMILIES
    for name, defaults in variants.items()
}


def list_models() -> list[str]:
    """The names that `create_model` takes; ViT sizes take any patch size, "ViT-B/4" too."""
    return list(ARCHITECTURES)


def translate(name: str) -> tuple[str, dict[str, Any]]:
    """A name of timm's or Hugging Face's as ours, with the image size that it says; others as given."""
    if found := FOREIGN_VIT.fullmatch(name):
        ours, pixels = f"ViT-{FOREIGN_SIZES[found['size']]}/{found['patch']}", found["pixels"]
    else:
        architecture, _, pixels = name.rpartition("_")
        known = FOREIGN.get(name), FOREIGN.get(architecture) if pixels.isdigit() else None
        ours, pixels = known[0] or known[1] or name, pixels if known[1] else None
    return ours, {"image_size": int(pixels)} if pixels else {}


def our_name(name: str) -> str:
    """The name that stands for a model in its files, however it is spelled."""
    return translate(name)[0]


def find_architecture(name: str) -> Architecture:
    """The architecture of that name, or of timm's or Hugging Face's for it.

    Raises ConfigError with the nearest name if it is unknown.
    """
    ours, stated = translate(name)
    if ours != name:
        found = find_architecture(ours)
        return dataclasses.replace(found, defaults={**found.defaults, **stated})
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if VIT_NAME.fullmatch(name):
        return Architecture(VisionTransformer, ViTOptions, vit_defaults(name))
    near = difflib.get_close_matches(name[:SHOWN], list_models(), n=3, cutoff=0.3)
    raise ConfigError(
        f"model.name={shown(name)} is unknown; the nearest: {', '.join(near or list_models())}."
    )


def model_options(name: str, /, **options: Any) -> ModelOptions:
    """The complete options of a named architecture, with `options` replacing its own.

    Raises ConfigError for an option that the architecture does not have.
    """
    architecture = find_architecture(name)
    known = [field.name for field in dataclasses.fields(architecture.options_class)]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1, cutoff=0)
            raise ConfigError(
                f"model.{option}: {name} has no such option; did you mean model.{near[0]}?"
            )
    return architecture.options_class(**{**architecture.defaults, **options})


def create_model(name: str, *, seed: int = 0, **options: Any) -> ImageClassifier:
    """A freshly initialised model.

    Args:
      name: one of `list_models()`, or timm's or Hugging Face's name of it, "vit_base_patch16_224".
      seed: of the initial parameters.
      **options: the architecture's own (`num_classes`, `image_size`, `dropout_rate`, ...); see
        `vit_jax.models.vit.ViTOptions`.

    Returns:
      A Flax NNX module without random state: `model(images)` evaluates, `model(images, key=key)`
      trains.
    """
    return build_model(name, jax.random.key(seed), model_options(name, **options))


def build_model(name: str, key: jax.Array, options: ModelOptions) -> ImageClassifier:
    """A model from complete options; pure in `key`, so that it may run under jit."""
    model = find_architecture(name).module(options, nnx.Rngs(params=key))
    model.name = our_name(name)
    return model


def abstract_model(name: str, **options: Any) -> ImageClassifier:
    """The model with shapes instead of arrays: nothing is allocated or computed."""
    return nnx.merge(*abstract_parts(name, model_options(name, **options)))


def abstract_parts(name: str, options: ModelOptions) -> tuple[nnx.GraphDef, dict[str, Any]]:
    """A model's structure, and the shapes and types of its parameters: a nested dict, to be read only.

    Nothing is allocated or computed.
    """
    # Shapes hold the mesh that is set, and their types depend on whether there are 64 bits.
    context = (jax.sharding.get_abstract_mesh(), jax.dtypes.canonicalize_dtype(float))
    return _abstract_parts(name, options, context)


@functools.lru_cache(maxsize=ABSTRACT_MODELS)
def _abstract_parts(
    name: str, options: ModelOptions, context: tuple[Any, ...]
) -> tuple[nnx.GraphDef, dict[str, Any]]:
    """The same in a context of JAX, which must be this one."""
    del context
    model = nnx.eval_shape(lambda: build_model(name, jax.random.key(0), options))
    structure, state = nnx.split(model)
    return structure, nnx.to_pure_dict(state)


def count_parameters(name: str, **options: Any) -> int:
    """Number of parameters, without allocating them."""
    _, shapes = abstract_parts(name, model_options(name, **options))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
