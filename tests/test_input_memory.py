"""Memory on many large photographs: file names are shuffled, never pixels."""

import io
import os

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.runs import read_metrics, start_command

NUM_FILES, NUM_DIFFERENT, SIZE = 2_000, 20, (2_464, 1_632)  # 4 megapixels each.
MOST_BYTES = 1.5e9


@pytest.mark.slow
def test_two_thousand_photographs_need_little_memory(tmp_path):
    picture = Image.fromarray(load_sample_image("china.jpg")).resize(SIZE, Image.Resampling.BICUBIC)
    rng, first = np.random.default_rng(0), {}
    for index in range(NUM_FILES):
        path = tmp_path / "data" / ("cat" if index % 2 else "dog") / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if (kind := index % NUM_DIFFERENT) in first:
            os.link(first[kind], path)
            continue
        noise = rng.normal(0, 5, (SIZE[1], SIZE[0], 1))
        pixels = np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        path.write_bytes(file.getvalue())
        first[kind] = path
    process = start_command(
        "--config=tests/tiny.py",
        f"--config.data.source=folder:{tmp_path}/data",
        "--config.data.train_crop=inception",
        "--config.data.held_out_fraction=0.01",
        "--config.model.channels=3",
        "--config.model.image_size=64",
        "--config.model.name=ViT-Ti/16",
        f"--workdir={tmp_path}/run",
    )
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    records = read_metrics(tmp_path / "run")
    assert records[-1]["step"] == 10
    assert records[-1]["train/device_memory_bytes"] < MOST_BYTES, "of this process, on a CPU"
