"""The page that goes with a model, word for word."""

import json
import types

import pytest

from vit_jax.model_card import Run, write_card

CONTENT = {"config": {"seed": 3, "data": {"data_dir": "gs://key@bucket/x?token=abc"}}, "a": 1}
METRICS = [
    {"step": 1500, "eval/accuracy": 0.1},
    {
        "step": 3000,
        "train/loss": 2.0,
        "data/skipped": 4,
        "time/steps": 125.0,
        "fewshot/5_shot": 0.5,
        "eval/accuracy": 0.123456789,
        "eval/loss": None,
        "images": 9,
    },
    {"step": 4500, "eval/accuracy": 0.3},
]


def card_of(tmp_path, num_names=2, num_classes=2, format="vit_jax", **options):
    model = types.SimpleNamespace(
        name="ViT-Ti/8",
        options=types.SimpleNamespace(num_classes=num_classes, image_size=(16, 24)),
        class_names=tuple(f"class {n}" for n in range(num_names)),
    )
    write_card(str(tmp_path), "me/hf_abcmine", model, format, **options)
    return (tmp_path / "README.md").read_text()


def test_the_page_of_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(json.dumps(CONTENT))
    lines = [*map(json.dumps, METRICS)]
    (tmp_path / "run/metrics.jsonl").write_text("\n".join(["{torn", *lines]))
    card = card_of(tmp_path, run=Run(str(tmp_path / "run"), 3000))
    assert (
        card
        == """---
library_name: vit_jax
pipeline_tag: image-classification
tags:
- image-classification
- vit_jax
---

# hf_…

ViT-Ti/8 for 2 classes, for images of 16x24 pixels, trained with vit_jax.

```python
import vit_jax

model = vit_jax.load_model("hf:me/hf_…")
```

## Metrics

After 3,000 updates:

| metric | value |
|---|---|
| eval/accuracy | 0.123457 |
| fewshot/5_shot | 0.5 |

## Training

The run's config is in [training_config.json](training_config.json).

## Classes

`class 0`, `class 1`
"""
    )
    expected = {"a": 1, "config": {"data": {"data_dir": "gs://bucket/x"}, "seed": 3}}
    config = (tmp_path / "training_config.json").read_text()
    assert config == json.dumps(expected, indent=2) + "\n"


@pytest.mark.parametrize(("count", "last"), [(100, "`class 99`\n"), (101, "… (101 in all)\n")])
def test_a_hundred_classes_are_named(tmp_path, count, last):
    card = card_of(tmp_path, count, count, format="huggingface")
    assert card.endswith(last)
    assert card.count("`class ") == 100
    assert "library_name: transformers\n" in card
    assert "## Training" not in card
    assert not (tmp_path / "training_config.json").exists()


@pytest.mark.parametrize("record", ["", '{"step": 7, "eval/accuracy": 0.5}\n'])
def test_a_run_that_says_nothing_of_its_step_has_no_metrics(tmp_path, record):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{torn")
    if record:
        (tmp_path / "run/metrics.jsonl").write_text(record)
    card = card_of(tmp_path, run=Run(str(tmp_path / "run"), 3000))
    assert "## Metrics" not in card
    assert "## Training" not in card
    assert not (tmp_path / "training_config.json").exists()


def test_a_head_need_not_be_there_nor_names(tmp_path):
    card = card_of(tmp_path, format="timm", has_head=False)
    assert "ViT-Ti/8 without a head, for" in card
    assert "## Classes" not in card
    assert "library_name: timm\n" in card
    assert "for 7 classes" in card_of(tmp_path, 0, 7)
