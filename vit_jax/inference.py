"""A trained model at work: from pictures to logits, on all devices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from vit_jax.config import default_config
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.transforms import eval_transform
from vit_jax.devices import sharding
from vit_jax.forward import Forward, make_forward
from vit_jax.model_file import Preprocessing

Transform = Callable[[Any], Any]  # encoded file or uint8 [H, W, C] -> uint8 of the model's size


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A model's function with its parameters on every device, which share a batch's rows."""

    forward: Forward
    params: dict
    mesh: Mesh

    def round_up(self, batch_size: int) -> int:
        """The next batch size that the devices can share equally."""
        return -(-batch_size // self.mesh.size) * self.mesh.size


def make_classifier(model: nnx.Module) -> Classifier:
    """Copies a model that `create_model` or `load_model` returned to all devices."""
    mesh = sharding.build_mesh(default_config().mesh)
    graphdef, state = nnx.split(model)
    params = jax.device_put(nnx.to_pure_dict(state), sharding.replicated(mesh))
    return Classifier(make_forward(graphdef, preprocessing_of(model), mesh), params, mesh)


def make_transform(model: nnx.Module, max_image_gib: float = MAX_IMAGE_GIB) -> Transform:
    """The model's preprocessing on the host: decodes, crops and resizes; pixels stay uint8.

    Raises ConfigError if the model's channels are not those of a picture, 1 or 3.
    """
    preprocessing = preprocessing_of(model)
    data = default_config().data
    data.update(
        max_image_gib=max_image_gib,
        eval_crop=preprocessing.crop,
        eval_resize=preprocessing.resize,
        interpolation=preprocessing.interpolation,
        antialias=preprocessing.antialias,
    )
    return eval_transform(data, model.options.image_size, model.options.channels)


def preprocessing_of(model: nnx.Module) -> Preprocessing:
    """What a loaded model expects of its images; for one just created, the default."""
    return getattr(model, "preprocessing", Preprocessing())


def class_names_of(model: nnx.Module) -> tuple[str, ...]:
    """A name for each class of the model: its number, where the model does not say."""
    names = getattr(model, "class_names", ())
    return (*names, *map(str, range(len(names), model.options.num_classes)))
