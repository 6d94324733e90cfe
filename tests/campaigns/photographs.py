"""From files of photographs to logits: this package's whole way against those of timm and transformers.

The first two commands need timm, or transformers, and torchvision, the last this package; they may be
several environments. PHOTOGRAPHS is a folder, such as the `data` of an installed scikit-image:

    PYTHON_WITH_TIMM -m tests.campaigns.photographs timm /tmp/photographs PHOTOGRAPHS
    PYTHON_WITH_TRANSFORMERS -m tests.campaigns.photographs huggingface /tmp/photographs PHOTOGRAPHS
    python -m tests.campaigns.photographs read /tmp/photographs PHOTOGRAPHS

Each folder that is written holds a ViT-Ti/16 with random parameters, as the library saves it for the
Hub, with one kind of preprocessing; the pixels that the library makes of each photograph; and the
logits. The last command prints for each the largest difference of the logits, and those of the
pixels in grey levels; it exits with 1 if a logit is further off than 2e-2.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

from tests.campaigns.timm_names import randomize

TOLERANCE = 2e-2  # of logits around 1
NAMES = (
    *("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "ihc.png"),
    *("rocket.jpg", "retina.jpg", "hubble_deep_field.jpg", "camera.png", "coins.png"),
)
HALF = (0.5, 0.5, 0.5)
PREPROCESSINGS = {  # as published files have it
    "augreg": {"crop_pct": 0.9, "interpolation": "bicubic", "mean": HALF, "std": HALF},
    "deit": {"crop_pct": 0.875, "interpolation": "bicubic"},
    "bilinear": {"crop_pct": 0.95, "interpolation": "bilinear", "mean": HALF, "std": HALF},
    "squash": {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"},
}


PROCESSORS = {  # Hugging Face's: a class, and what it is made with
    "hf_vit": ("ViTImageProcessor", {}),
    "hf_vit_pil": ("ViTImageProcessorPil", {}),
    "hf_dinov2": (
        "BitImageProcessor",
        {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3},
    ),
}


def opened(photographs: pathlib.Path) -> list:
    """The photographs as Pillow opens them."""
    from PIL import Image

    return [Image.open(photographs / file).convert("RGB") for file in NAMES]


def write_huggingface(folder: pathlib.Path, photographs: pathlib.Path) -> None:
    """Writes a folder for each of PROCESSORS."""
    import torch
    import transformers

    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    config = transformers.ViTConfig(**sizes, num_labels=5)
    model = transformers.ViTForImageClassification(config).eval()
    randomize(model)
    for name, (class_name, options) in PROCESSORS.items():
        processor = getattr(transformers, class_name)(**options)
        pixels = processor(opened(photographs), return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            logits = model(pixels).logits
        model.save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
        save(folder / name, pixels, logits)


def save(folder: pathlib.Path, pixels, logits) -> None:
    """Writes what a library makes of the photographs, as arrays."""
    np.savez(
        folder / "expected.npz",
        pixels=pixels.numpy().transpose(0, 2, 3, 1).astype(np.float32),
        logits=logits.numpy(),
    )


def write_timm(folder: pathlib.Path, photographs: pathlib.Path) -> None:
    """Writes a folder for each of PREPROCESSINGS."""
    import timm
    import torch
    from timm.data import create_transform, resolve_model_data_config
    from timm.models import save_for_hf

    model = timm.create_model("vit_tiny_patch16_224", num_classes=5).eval()
    randomize(model)
    for name, changes in PREPROCESSINGS.items():
        model.pretrained_cfg.update(changes)
        model.default_cfg = model.pretrained_cfg
        transform = create_transform(**resolve_model_data_config(model))
        pixels = torch.stack([transform(image) for image in opened(photographs)])
        with torch.no_grad():
            logits = model(pixels)
        (folder / name).mkdir(parents=True, exist_ok=True)
        save_for_hf(model, folder / name, safe_serialization=True)
        save(folder / name, pixels, logits)


def read(folder: pathlib.Path, photographs: pathlib.Path) -> int:
    """Compares each folder; 1 if a logit is too far off."""
    import vit_jax
    from vit_jax.predict import load_images

    far = 0
    for path in sorted(folder.glob("*/expected.npz")):
        expected = np.load(path)
        model = vit_jax.load_model(path.parent)
        images = load_images(model, [photographs / name for name in NAMES])
        std = np.array(model.preprocessing.std)
        levels = np.abs(np.asarray(images) - expected["pixels"]) * 255 * std
        logits = np.asarray(model(images))
        same = np.asarray(model(expected["pixels"]))
        for index, name in enumerate(NAMES):
            difference = np.abs(logits[index] - expected["logits"][index]).max()
            far += difference > TOLERANCE
            line = {
                "logits": float(f"{difference:.1e}"),
                "grey levels, mean": float(f"{levels[index].mean():.2g}"),
                "largest": float(f"{levels[index].max():.3g}"),
                "logits of the same pixels": float(
                    f"{np.abs(same[index] - expected['logits'][index]).max():.1e}"
                ),
            }
            print(f"{path.parent.name:10} {name:22} {json.dumps(line)}", flush=True)
    return int(far > 0)


def main() -> int:
    """Parses the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("timm", "huggingface", "read"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("photographs", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "read":
        return read(arguments.folder, arguments.photographs)
    write = {"timm": write_timm, "huggingface": write_huggingface}[arguments.command]
    write(arguments.folder, arguments.photographs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
