"""Every architecture of timm's families of Vision Transformers, shrunk, against timm's own logits.

The first command needs timm, the second this package; they may be two environments:

    PYTHON_WITH_TIMM -m tests.campaigns.timm_names write /tmp/timm_names
    python -m tests.campaigns.timm_names read /tmp/timm_names

`golden tests/golden/timm` instead of `write` writes a few, tiny, for the tests (timm 1.0.31, torch
2.13.0).

Each model has two blocks of 16 features a head with random parameters, and lies in a folder as timm
saves it for the Hub. The second command prints a line for each: the largest difference of the
logits, or the message that refuses it; and exits with 1 if any is wrong or ends in a traceback.
"""

import argparse
import collections
import json
import pathlib
import sys

import numpy as np

MODULES = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "deit",
    "eva",
    "beit",
    "mlp_mixer",
    "resnetv2",
)
TOLERANCE = 1e-4  # of logits around 1
HEAD_WIDTH = 16
NUM_CLASSES = 5
FIXED_WIDTHS = ("vit_base_mci_224",)  # by their stem


# A name of each kind; with so few features, on a grid that is no square.
GOLDEN = (
    "beit3_base_patch16_224",
    "beit_base_patch16_224",
    "beitv2_base_patch16_224",
    "eva02_base_patch14_224",
    "eva02_tiny_patch14_224",
    "eva_giant_patch14_224",
    "vit_base_patch16_clip_quickgelu_224",
    "vit_base_patch32_siglip_256",
    "vit_giant_patch14_reg4_dinov2",
    "vit_small_patch16_rope_224",
    "vit_small_plus_patch16_dinov3_qkvb",
)
SHARED_BIAS = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}
VARIANTS = {  # what some of them have besides
    "eva_giant_patch14_224": {"mlp_ratio": 4.0},  # Half of it is the gate.
    "vit_giant_patch14_reg4_dinov2": {"mlp_ratio": 4.0},
    "beitv2_base_patch16_224": {**SHARED_BIAS, "use_abs_pos_emb": True, "global_pool": "token"},
}
LARGER = (20, 24)  # pixels, of another grid
TINY = {"embed_dim": 16, "patch_size": 4, "img_size": (12, 16), "num_classes": NUM_CLASSES}


def write_golden(folder: pathlib.Path) -> None:
    """Writes a folder for each model of GOLDEN."""
    import timm

    for name in GOLDEN:
        model = timm.create_model(name, **TINY, num_heads=2, depth=2, **VARIANTS.get(name, {}))
        write_model(model, folder / name, TINY["img_size"])
        write_larger(folder / name)


def write_larger(folder: pathlib.Path) -> None:
    """Writes images of another size, and the logits of the folder's model, as timm resizes it."""
    import timm
    import torch

    given = {} if "beit" in folder.name else {"img_size": LARGER}
    model = timm.create_model(f"local-dir:{folder}", pretrained=True, **given).eval()
    if not given:  # A table of BEiT's offsets does not tell which rectangle it is of.
        model.set_input_size(LARGER)
    images = np.random.default_rng(1).normal(size=(2, *LARGER, 3)).astype(np.float32)
    with torch.no_grad():
        logits = model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    np.savez(folder / "larger.npz", images=images, logits=logits.numpy())


def write(folder: pathlib.Path, pattern: str) -> None:
    """Writes a folder for each model: timm's files, and `expected.npz` with images and logits."""
    import timm

    for module in MODULES:
        for name in timm.list_models(pattern, module=module):
            target = folder / module / name
            try:
                model, size = shrunk(name, module)
            except Exception as error:  # timm cannot build every model smaller.
                print(f"{module} {name}: timm cannot shrink it: {error!r}", file=sys.stderr)
                continue
            write_model(model, target, size)


def write_model(model, target: pathlib.Path, size) -> None:
    """Writes one model's folder, its parameters drawn anew."""
    import torch
    from timm.models import save_for_hf

    randomize(model)
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype(np.float32)
    with torch.no_grad():
        outputs = model.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    target.mkdir(parents=True, exist_ok=True)
    save_for_hf(model, target, safe_serialization=True)
    np.savez(target / "expected.npz", images=images, logits=outputs.numpy())


def shrunk(name: str, module: str):
    """timm's model with two blocks and few features, and the size of its images."""
    import timm
    import torch

    with torch.device("meta"):
        full = timm.create_model(name, num_classes=NUM_CLASSES)
    if module in ("mlp_mixer", "resnetv2"):  # Their depth is no argument.
        for stage in getattr(full, "stages", []):
            stage.blocks = stage.blocks[:1]
        if hasattr(full, "blocks"):
            full.blocks = full.blocks[:2]
        return full.to_empty(device="cpu"), full.pretrained_cfg["input_size"][1:]
    size = side(full)
    arguments = {"img_size": size, "num_classes": NUM_CLASSES, "depth": 2}
    attention = next(part for part in full.blocks[0].modules() if hasattr(part, "num_heads"))
    if name not in FIXED_WIDTHS:
        arguments["embed_dim"] = HEAD_WIDTH * attention.num_heads
    if "sapiens2" in name:  # Each block has its own.
        arguments["num_kv_heads"] = (attention.num_heads, attention.num_heads // 2)
    return timm.create_model(name, **arguments), (size, size)


def side(model) -> int:
    """The side of images of three to four patches."""
    embedding = model.patch_embed if hasattr(model, "patch_embed") else model.stem
    rows = embedding.grid_size[0]
    return 4 * (embedding.img_size[0] // rows)


def randomize(model) -> None:
    """Parameters under which every one of them matters to the logits."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 1 if parameter.ndim == 1 and name.endswith("weight") else 0
            spread = 0.2 if parameter.ndim < 2 else parameter[0].numel() ** -0.5
            parameter.copy_(scale + min(spread, 0.3) * noise)


def read(folder: pathlib.Path, pattern: str) -> int:
    """Loads each folder and compares its logits; 1 if any is wrong or fails without a message."""
    import vit_jax
    from vit_jax.errors import UserError

    counts: collections.Counter[str] = collections.Counter()
    for path in sorted(folder.glob(f"{pattern}/expected.npz")):
        name = f"{path.parent.parent.name} {path.parent.name}"
        expected = np.load(path)
        try:
            size = expected["images"].shape[1:3]
            model = vit_jax.load_model(path.parent, image_size=size)
            difference = np.abs(np.asarray(model(expected["images"])) - expected["logits"]).max()
            verdict = "right" if difference <= TOLERANCE else "WRONG"
            line = f"{difference:.1e} of {np.abs(expected['logits']).max():.1f}"
        except UserError as error:
            verdict, line = "refused", str(error).removeprefix(f"{path.parent}: ")
        except Exception as error:
            verdict, line = "TRACEBACK", repr(error)
        counts[verdict] += 1
        print(f"{verdict:9} {name:60} {line}", flush=True)
    print(json.dumps(counts))
    return int(counts["WRONG"] + counts["TRACEBACK"] > 0)


def main() -> int:
    """Parses the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("write", "golden", "read"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--names", default="*", help="only those that match")
    arguments = parser.parse_args()
    if arguments.command == "read":
        return read(arguments.folder, f"*/{arguments.names}")
    if arguments.command == "golden":
        write_golden(arguments.folder)
    else:
        write(arguments.folder, arguments.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
