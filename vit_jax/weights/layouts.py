"""What a format can hold: one layout or several, each for some of the models."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile
from vit_jax.models.base import ModelOptions
from vit_jax.models.layers import DENSE_MLP
from vit_jax.models.positions import LEARNED_1D, NO_BIAS, STEM
from vit_jax.weights.files import Files
from vit_jax.weights.mapping import Tensors

HEAD_BIAS = "head/bias"
KEY_BIAS = "blocks/attention/key/bias"
PLAIN_VIT: Mapping[str, tuple] = {  # the options of a ViT as most libraries know it
    "representation_size": (0,),
    "distillation_token": (False,),
    "num_registers": (0,),
    "layer_scale": (0,),
    "query_key_norm": (False,),
    "position_placement": (STEM,),
    "positions": (LEARNED_1D,),
    "relative_position_bias": (NO_BIAS,),
    "mlp": (DENSE_MLP,),
    "mlp_norm": (False,),
    "attention_norm": (False,),
    "pre_norm": (False,),
    "final_norm": (True,),
}


def vit_values(*free: str, **values: tuple) -> dict[str, tuple]:
    """A plain ViT's options, but for those that may have any value, or these ones."""
    return {option: kept for option, kept in PLAIN_VIT.items() if option not in free} | values


def without_head_bias(parameters: Tensors) -> dict[str, np.ndarray]:
    """Without the bias of CLIP's projection, which is 0; raises WeightsError if it is not."""
    if parameters.get(HEAD_BIAS, np.zeros(0)).any():
        raise WeightsError(
            f"its {HEAD_BIAS} is not 0, and CLIP's projection has none: write format='timm'."
        )
    return {name: array for name, array in parameters.items() if name != HEAD_BIAS}


def without_key_bias(parameters: Tensors) -> dict[str, np.ndarray]:
    """Without the keys' biases, for libraries that have none.

    One adds the same to a query's products with all keys, which softmax takes out again: unless norms
    or rotations lie between, the function is the same.
    """
    return {name: array for name, array in parameters.items() if name != KEY_BIAS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The files that some models become.

    Attributes:
      files: (path, parameters, complete options, description) -> what to write where.
      name: the kind of model, in words, for messages of formats that have several.
      models: option classes; None: all.
      values: option -> what it may be; an option that is not here may be anything.
      needs: options that must not be 0 or False.
    """

    files: Callable[[str, Tensors, Any, ModelFile], Files]
    name: str = ""
    models: tuple[type, ...] | None = None
    values: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def is_for(self, options: ModelOptions) -> bool:
        """Whether models of that family may be in it."""
        return self.models is None or type(options) in self.models

    def misfits(self, options: ModelOptions) -> dict[str, str]:
        """The options that it cannot express -> what they may be, in words."""
        words = {
            option: f"only {', '.join(map(repr, allowed))}"
            for option, allowed in self.values.items()
            if getattr(options, option, allowed[0]) not in allowed
        }
        return words | {
            option: "it has one" for option in self.needs if not getattr(options, option)
        }
