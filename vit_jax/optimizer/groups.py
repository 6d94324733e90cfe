"""Parameter groups: which parameters share a learning rate and a weight decay, and which are frozen.

A rule is a pair (regular expression, value). Rules see the names of `parameters.layer_names`, one
for each layer of the stacked blocks, and the first that matches a name wins.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import unflatten_dict
from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.parameters import HEAD_NORM, LAYERS, TrainablePart, layer_names, named_leaves
from vit_jax.tables import format_table

# What is above the blocks learns at the full rate; what is below them counts as layer 0.
ABOVE_BLOCKS = r"^(norm|attention_pooling|pre_logits|head|head_norm|distillation_head|objective)/"

Rules = Sequence[tuple[str, Any]]
PerLayer = dict[str, np.ndarray]  # Parameter name -> a value for each layer: [layers], else [1].


class Match(NamedTuple):
    """A rule, and the names that it decided."""

    key: str
    expression: str
    value: Any
    names: tuple[str, ...]

    def __str__(self) -> str:
        first = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")
        value = "" if self.value is True else f" x {self.value:g}"
        count = f"{len(self.names)} name" + ("s" if len(self.names) > 1 else "")
        return f"{self.key} {self.expression!r}{value}: {count}, {first}"


@dataclasses.dataclass(frozen=True)
class ParameterGroups:
    """How every layer of every parameter is trained."""

    shapes: dict[str, tuple[int, ...]]
    frozen: PerLayer  # bool
    rates: PerLayer  # times the learning rate
    decays: PerLayer  # times the weight decay
    matches: tuple[Match, ...]

    @property
    def trainable(self) -> TrainablePart:
        """The part of the parameters that is not frozen."""
        trained = {name: ~frozen for name, frozen in self.frozen.items() if not frozen.all()}
        return TrainablePart(
            {n: None if mask.all() else np.flatnonzero(mask) for n, mask in trained.items()}
        )

    def factors(self, values: PerLayer) -> dict:
        """Values such as `rates`, to multiply the trainable part with.

        Returns a nested dict: a float where all layers share it, else float32 [layers, 1, ...].
        """

        def factor(name: str, layers: np.ndarray | None) -> float | np.ndarray:
            chosen = values[name] if layers is None else values[name][layers]
            if (chosen == chosen[0]).all():
                return float(chosen[0])
            return np.float32(chosen).reshape(-1, *[1] * (len(self.shapes[name]) - 1))

        layers = self.trainable.layers
        return unflatten_dict({name: factor(name, layers[name]) for name in layers}, sep="/")

    def describe(self, weight_decay: float) -> str:
        """The matches of each rule, and a table of the groups of equal values."""
        groups: dict[tuple, list[tuple[str, int]]] = {}
        for name, shape in self.shapes.items():
            layers = layer_names(name, shape)
            values = zip(self.frozen[name], -self.rates[name], -self.decays[name], strict=True)
            for layer, value in zip(layers, values, strict=True):
                key = (True, 0.0, 0.0) if value[0] else value
                groups.setdefault(key, []).append((layer, math.prod(shape) // len(layers)))
        rows = [("parameters", "learning rate", "weight decay", "names")]
        for (frozen, rate, decay), members in sorted(groups.items()):
            names, sizes = zip(*members, strict=True)
            treatment = (f"x {-rate:.4g}", f"{-decay * weight_decay:.4g}")
            rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
            rows.append(
                (f"{sum(sizes):,}", *(("frozen", "") if frozen else treatment), names[0] + rest)
            )
        return "\n".join([*map(str, self.matches), format_table(rows)])


def parameter_groups(config: ConfigDict, params: dict) -> ParameterGroups:
    """The groups that `config.optimizer` makes of a model's parameters.

    Args:
      config: `config.optimizer`.
      params: nested dict of arrays or shapes.

    Raises:
      ConfigError: a rule matches nothing, or everything is frozen.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(params)}
    names = {name: layer_names(name, shape) for name, shape in shapes.items()}
    freeze = [(config.freeze, True)] if config.freeze else []
    frozen, frozen_by = match_rules("freeze", freeze, names, False)
    statistics = [name for name in names if name.startswith(f"{HEAD_NORM}/")]
    frozen |= {name: np.ones_like(frozen[name]) for name in statistics}  # No gradient moves them.
    rates, rates_by = match_rules("rate_multipliers", config.rate_multipliers, names, 1.0)
    decays, decays_by = match_rules("decay_multipliers", config.decay_multipliers, names, 0.0)
    if all(mask.all() for mask in frozen.values()):
        raise ConfigError(
            f"config.optimizer.freeze={config.freeze!r} matches every parameter: nothing is left "
            "to train."
        )
    if config.layer_decay < 1:
        by_layer = layer_rates(config.layer_decay, names)
        rates = {name: rate * by_layer[name] for name, rate in rates.items()}
    return ParameterGroups(shapes, frozen, rates, decays, (*frozen_by, *rates_by, *decays_by))


def match_rules(
    key: str, rules: Rules, names: dict[str, list[str]], default: Any
) -> tuple[PerLayer, list[Match]]:
    """The value of the first rule that matches, for every layer of every parameter.

    Args:
      key: of `config.optimizer`, for messages.
      rules: pairs (regular expression, value).
      names: of every parameter, one for each layer.
      default: where no rule matches.

    Returns:
      The values, and what each rule matched.

    Raises:
      ConfigError: a rule matches nothing that an earlier one has not.
    """
    matched: list[list[str]] = [[] for _ in rules]

    def value_of(name: str) -> Any:
        for (expression, value), found in zip(rules, matched, strict=True):
            if re.search(expression, name):
                found.append(name)
                return value
        return default

    values = {n: np.array([value_of(layer) for layer in layers]) for n, layers in names.items()}
    for (expression, _), found in zip(rules, matched, strict=True):
        if not found:
            examples = ", ".join(layers[-1] for layers in list(names.values())[:3])
            earlier = " that an earlier expression does not" if len(rules) > 1 else ""
            raise ConfigError(
                f"config.optimizer.{key}: {expression!r} matches no parameter{earlier}; names are "
                f"such as {examples}."
            )
    pairs = zip(rules, matched, strict=True)
    return values, [Match(key, *rule, tuple(found)) for rule, found in pairs]


def layer_rates(decay: float, names: dict[str, list[str]]) -> PerLayer:
    """Layer-wise rate decay: with L blocks, block k of 0 to L - 1 learns at decay^(L - k).

    What is below the blocks (embeddings, class token, a hybrid's stem) counts as layer 0 and learns
    at decay^(L + 1), what is above them at the full rate: as in fine-tuning BEiT (2106.08254) and
    MAE (2111.06377). Raises ConfigError for a model without stacked blocks.
    """
    if not any(name.startswith(LAYERS) for name in names):
        raise ConfigError(
            f"config.optimizer.layer_decay={decay}: this model has no blocks to count; use "
            "config.optimizer.rate_multipliers."
        )

    depth = max(len(layers) for name, layers in names.items() if name.startswith(LAYERS))

    def rates(name: str, layers: list[str]) -> np.ndarray:
        if name.startswith(LAYERS):
            return decay ** np.arange(len(layers), 0, -1.0)
        rate = 1.0 if re.search(ABOVE_BLOCKS, name) else decay ** (depth + 1)
        return np.full(len(layers), rate)

    return {name: rates(name, layers) for name, layers in names.items()}
