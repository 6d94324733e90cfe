"""Whether a model learns as well from prepared shards as from the originals.

    python benchmarks/prepared_accuracy.py [--steps=300] [--seeds=3]

Scikit-learn's digits, enlarged and laid over parts of its photographs, are JPEGs of 320×240. A tiny ViT at
24 px trains on these, and on shards of 32 px on the shorter side as JPEG and as raw pixels; it is evaluated
on 360 other digits, as the form has them.
"""

import argparse
import pathlib
import statistics
import tempfile

import cv2
import numpy as np
from sklearn.datasets import load_digits, load_sample_image

from vit_jax.config import default_config
from vit_jax.prepare.__main__ import run as prepare
from vit_jax.train import run

WIDTH, HEIGHT, SIDE, SIZE = 320, 240, 32, 24


def write_originals(root: pathlib.Path) -> None:
    """Writes the digits over photographs."""
    photos = [load_sample_image(f"{name}.jpg") for name in ("china", "flower")]
    digits, rng = load_digits(), np.random.default_rng(0)
    test = set(rng.permutation(len(digits.images))[:360].tolist())
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        photo = photos[number % 2]
        top, left = rng.integers(photo.shape[0] - HEIGHT), rng.integers(photo.shape[1] - WIDTH)
        background = photo[top : top + HEIGHT, left : left + WIDTH] // 2
        ink = cv2.resize(
            image.astype(np.float32) * 8, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC
        )
        picture = np.clip(background + ink[..., np.newaxis], 0, 255).astype(np.uint8)
        path = root / ("val" if number in test else "train") / str(label) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])


def accuracy(source: str, steps: int, seed: int, workdir: str) -> float:
    """Of a run's end."""
    config = default_config()
    config.seed, config.batch_size, config.total_steps = seed, 64, steps
    config.warmup_steps, config.log_every_steps = steps // 10, steps
    config.data.update({"source": source, "flip": False, "train_crop": "inception(0.5, 1)"})
    config.model.update({"name": "ViT-Ti/16", "image_size": SIZE, "patch_size": 6, "num_heads": 4})
    config.model.update({"width": 64, "depth": 3, "mlp_width": 128})
    config.optimizer.learning_rate = 2e-3
    return run(config, workdir)["eval/accuracy"]


def main() -> None:
    """Prints a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_originals(root / "originals")
        sources = {"originals": f"folder:{root}/originals"}
        for name in ("jpeg", "raw"):
            what = [f"--source={sources['originals']}", f"--output={root}/{name}"]
            prepare([*what, f"--shorter_side={SIDE}", f"--format={name}", "--num_workers=1"])
            sources[name] = f"tar:{root}/{name}"
        for name, source in sources.items():
            found = [
                accuracy(source, flags.steps, seed, f"{root}/run_{name}_{seed}")
                for seed in range(flags.seeds)
            ]
            values = " ".join(f"{value:.1%}" for value in found)
            print(f"{name:10} {statistics.mean(found):.1%}: {values}", flush=True)


if __name__ == "__main__":
    main()
