"""Evaluators outside a run: a model that reads an image's class from its brightness."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from tests.states import mesh_of
from vit_jax.config import default_config
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.data.images.transforms import eval_transform
from vit_jax.devices import sharding
from vit_jax.evaluators.base import Setting
from vit_jax.model_file import Preprocessing

SIZE = 4


@dataclasses.dataclass(frozen=True)
class Brightness:
    """A network: logit k is larger the nearer the mean pixel is to k times `step`."""

    mesh: jax.sharding.Mesh
    num_classes: int
    step: float

    def __call__(self, params, images):
        distances = self.outputs(params, images)["pre_logits"] - jnp.arange(self.num_classes)
        return -jnp.square(distances) * params["sharpness"]

    def outputs(self, params, images):
        mean = images.astype(jnp.float32).mean((1, 2, 3))
        return {"pre_logits": mean[:, None] / self.step * params["scale"]}


def make_setting(
    source, class_names, *, brightness_step=20, num_classes=7, num_devices=1, batch_size=4, **keys
):
    """A setting on a source, and parameters."""
    mesh = mesh_of(num_devices)
    config = default_config().data
    config.update({"source": source, "num_threads": 2, "num_workers": 0, **keys})
    data = EvaluationData(
        config=config,
        transform=eval_transform(Preprocessing(), (SIZE, SIZE), 1),
        image_shape=(SIZE, SIZE, 1),
        class_names=tuple(class_names),
        num_classes=num_classes,
        batch_size=batch_size,
        rows=sharding.batch_sharding(mesh),
    )
    params = {"sharpness": np.float32(1), "scale": np.float32(1)}
    params = jax.device_put(params, sharding.replicated(mesh))
    return Setting(Brightness(mesh, num_classes, brightness_step), data), params


def write_folder(folder, pixels, names=None):
    """Even images, by class: lists of brightnesses; `names` of the files, else numbers."""
    count = 0
    for name, values in pixels.items():
        (folder / name).mkdir(parents=True)
        for value in values:
            file = names[count] if names else f"{count:04d}"
            image = Image.fromarray(np.full((SIZE, SIZE), value, np.uint8))
            image.save(folder / name / f"{file}.png")
            count += 1
