"""The vision towers of the transformers library, tiny, against its own outputs.

The first command needs transformers and torch, the second this package; they may be two
environments:

    PYTHON_WITH_TRANSFORMERS -m tests.campaigns.huggingface_names write tests/golden/huggingface
    python -m tests.campaigns.huggingface_names read tests/golden/huggingface

Each folder holds what `save_pretrained` writes for random parameters, and `expected.npz` with
images and logits, or for models without a head their pooled output. Written with transformers
5.24.0 and torch 2.13.0.
"""

import argparse
import pathlib
import sys

import numpy as np

from tests.campaigns.timm_names import LARGER, randomize, read

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
}
TEXT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 10,
    "max_position_embeddings": 5,
    "projection_size": 8,
}
BEIT = {
    **SIZES,
    "use_relative_position_bias": True,
    "use_mask_token": True,
    "vocab_size": 6,
}
SHARED_BIAS = {"use_relative_position_bias": False, "use_shared_relative_position_bias": True}
RATIO = {key: value for key, value in SIZES.items() if key != "intermediate_size"}
LABELS = {"num_labels": 5}
# The class's prefix -> its suffixes and the sizes of its configuration.
CLASSES = {
    "ViT": (("Model", "ForImageClassification", "ForMaskedImageModeling"), SIZES),
    "DeiT": (("Model", "ForImageClassification", "ForImageClassificationWithTeacher"), SIZES),
    "ViTMAE": (("Model", "ForPreTraining"), {**SIZES, "mask_ratio": 0.0}),
    "ViTMSN": (("Model", "ForImageClassification"), SIZES),
    "IJepa": (("Model", "ForImageClassification"), SIZES),
    "Dinov2": (("Model", "ForImageClassification"), {**RATIO, "mlp_ratio": 2}),
    "Dinov2WithRegisters": (("Model", "ForImageClassification"), {**RATIO, "mlp_ratio": 2}),
    "Beit": (("Model", "ForImageClassification", "ForMaskedImageModeling"), BEIT),
    "Data2VecVision": (("Model", "ForImageClassification"), BEIT),
    "CLIPVision": (("Model", "ModelWithProjection"), {**SIZES, "projection_dim": 7}),
    "CLIP": (("Model", "ForImageClassification"), {}),
    "SiglipVision": (("Model",), SIZES),
    "Siglip": (("Model", "ForImageClassification"), {}),
    "DINOv3ViT": (("Model",), {**SIZES, "num_register_tokens": 2}),
}
VARIANTS = {  # a folder's name -> class, and what its configuration has besides
    "Dinov2Model_swiglu": ("Dinov2Model", {"use_swiglu_ffn": True}),
    "BeitModel_shared": (
        "BeitModel",
        {**SHARED_BIAS, "use_absolute_position_embeddings": True, "use_mean_pooling": False},
    ),
    "BeitForImageClassification_none": (
        "BeitForImageClassification",
        {"use_relative_position_bias": False},
    ),
    "ViTModel_no_bias": ("ViTModel", {"qkv_bias": False}),
    "ViTForImageClassification_tanh": ("ViTForImageClassification", {"hidden_act": "gelu_new"}),
    "CLIPVisionModel_erf": ("CLIPVisionModel", {"hidden_act": "gelu"}),
    "DINOv3ViTModel_swiglu": (
        "DINOv3ViTModel",
        {"use_gated_mlp": True, "hidden_act": "silu", "key_bias": True},
    ),
}


def write(folder: pathlib.Path) -> None:
    """Writes all folders."""
    names = {f"{p}{s}": (f"{p}{s}", {}) for p, (suffixes, _) in CLASSES.items() for s in suffixes}
    for name, (class_name, options) in {**names, **VARIANTS}.items():
        try:
            write_model(folder / name, class_name, options)
        except Exception as error:
            print(f"{name}: {error!r}", file=sys.stderr)


def write_model(target: pathlib.Path, class_name: str, options: dict) -> None:
    """Writes one folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    prefix = max((p for p in CLASSES if class_name.startswith(p)), key=len)
    config_class = getattr(transformers, f"{prefix}Config")
    sizes = CLASSES[prefix][1]
    if prefix in ("CLIP", "Siglip"):
        sizes = {"vision_config": SIZES, "text_config": TEXT, "projection_dim": 7}
    config = config_class(**{**sizes, **LABELS, **options})
    model = getattr(transformers, class_name)(config).eval()
    randomize(model)
    model.save_pretrained(target)
    side = getattr(config, "vision_config", config).image_size
    write_outputs(model, target / "expected.npz", (side, side), 0)
    if prefix == "Beit":  # On a grid of another shape.
        write_outputs(model, target / "larger.npz", LARGER, 1)


def write_outputs(model, path: pathlib.Path, size: tuple[int, int], seed: int) -> None:
    """Writes images of a size, and the model's outputs."""
    import torch

    images = np.random.default_rng(seed).normal(size=(2, *size, 3)).astype(np.float32)
    with torch.no_grad():
        outputs = outputs_of(model, torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    np.savez(path, images=images, logits=outputs.numpy())


def outputs_of(model, pixels):
    """Logits; else the projection, the pooled output, or the first token or mean of the last layer."""
    kind = type(model).__name__
    if kind in ("CLIPModel", "SiglipModel"):
        outputs = model.get_image_features(pixel_values=pixels)
        return getattr(outputs, "pooler_output", outputs)
    if kind == "ViTMAEForPreTraining":
        model = model.vit
    if kind == "ViTForMaskedImageModeling":
        model = model.vit
    if kind == "BeitForMaskedImageModeling":  # It has the norm that its trunk has not.
        return model.layernorm(model.beit(pixels).last_hidden_state)[:, 1:].mean(1)
    if kind == "Data2VecVisionModel":  # Made without a pooler, and so without a norm.
        return model(pixels).last_hidden_state[:, 1:].mean(1)
    outputs = model(pixel_values=pixels)
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(outputs, name, None) is not None:
            return getattr(outputs, name)
    tokens = outputs.last_hidden_state
    return tokens.mean(1) if kind.startswith("IJepa") else tokens[:, 0]


def main() -> int:
    """Parses the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("write", "read"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--names", default="*", help="only those that match")
    arguments = parser.parse_args()
    if arguments.command == "read":
        return read(arguments.folder.parent, f"{arguments.folder.name}/{arguments.names}")
    write(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
