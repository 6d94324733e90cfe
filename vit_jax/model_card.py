"""The page that goes with a model on the Hub: what it is, how it was trained, and how good it is."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from vit_jax import storage
from vit_jax.models.base import ImageClassifier

CARD, CONFIG = "README.md", "training_config.json"
SHOWN_CLASSES = 100
OTHERS = ("train/", "data/", "time/")  # Metrics of a run that are no evaluator's.
# What may open somebody's door: tokens, the query of a signed address, the user in an address.
SECRETS = (
    (re.compile(r"\bhf_\w+"), "hf_…"),
    (re.compile(r"(://[^\s\"'?]+)\?[^\s\"']*"), r"\1"),
    (re.compile(r"://[^\s\"'/@]+@"), "://"),
)
LIBRARIES = {"timm": "timm", "huggingface": "transformers", "vit_jax": "vit_jax"}  # By format.
TEMPLATE = """---
library_name: {library}
pipeline_tag: image-classification
tags:
- image-classification
- vit_jax
---

# {title}

{name} {purpose}, for images of {height}x{width} pixels, trained with vit_jax.

```python
import vit_jax

model = vit_jax.load_model("hf:{repository}")
```
{sections}"""


class Run(NamedTuple):
    """The run that a model is of."""

    workdir: str
    step: int | None  # of the checkpoint; None: of several, whose mean nobody has measured


def write_card(
    folder: str,
    repository: str,
    model: ImageClassifier,
    format: str,
    *,
    has_head: bool = True,
    run: Run | None = None,
) -> None:
    """Writes the page, and a run's config beside it, into the folder of an export.

    Args:
      folder: of the export.
      repository: USER/NAME.
      model: that is in it.
      format: that it is written in.
      has_head: whether the head is in it.
      run: that it is of, if of any.
    """
    content = config_of(run.workdir) if run else {}
    names = getattr(model, "class_names", ()) if has_head else ()
    sections = []
    if run and run.step and (metrics := metrics_of(run)):
        sections.append(section("Metrics", metrics_table(metrics, run.step)))
    if content:
        sections.append(section("Training", f"The run's config is in [{CONFIG}]({CONFIG})."))
    if names:
        more = f", … ({len(names):,} in all)" if len(names) > SHOWN_CLASSES else ""
        listed = ", ".join(f"`{name}`" for name in names[:SHOWN_CLASSES])
        sections.append(section("Classes", f"{listed}{more}"))
    height, width = model.options.image_size
    text = TEMPLATE.format(
        library=LIBRARIES[format],
        title=repository.partition("/")[2],
        name=model.name,
        purpose=f"for {model.options.num_classes} classes" if has_head else "without a head",
        height=height,
        width=width,
        repository=repository,
        sections="".join(sections),
    )
    storage.write(storage.join(folder, CARD), without_secrets(text).encode())
    if content:
        config = json.dumps(content, indent=2, sort_keys=True)
        storage.write(storage.join(folder, CONFIG), f"{without_secrets(config)}\n".encode())


def section(title: str, text: str) -> str:
    """A part of the page."""
    return f"\n## {title}\n\n{text}\n"


def metrics_table(metrics: dict[str, float], step: int) -> str:
    """The evaluators' numbers at a step."""
    rows = [f"| {name} | {value:.6g} |" for name, value in sorted(metrics.items())]
    return "\n".join([f"After {step:,} updates:\n", "| metric | value |", "|---|---|", *rows])


def config_of(workdir: str) -> dict[str, Any]:
    """A run's config, with the versions of packages; empty if there is none."""
    try:
        return json.loads(storage.read(storage.join(workdir, "config.json")))
    except (OSError, ValueError):
        return {}


def metrics_of(run: Run) -> dict[str, float]:
    """The evaluators' numbers of the step, from `metrics.jsonl`; empty if there are none."""
    try:
        lines = storage.read(storage.join(run.workdir, "metrics.jsonl")).splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # The last one of a run that was killed.
            continue
        if record.get("step") == run.step:
            return {
                name: value
                for name, value in record.items()
                if "/" in name and not name.startswith(OTHERS) and value is not None
            }
    return {}


def without_secrets(text: str) -> str:
    """The text without tokens and signatures."""
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    return text
