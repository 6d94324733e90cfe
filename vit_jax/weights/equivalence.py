"""Rewrites a file's parameters into a model's form where that leaves the function as it is.

A class token's position row may be part of the class token, LayerScale part of the kernels before
it, a fixed position table the start of a learned one. Each rewrite takes a `Form` a step towards
the model and leaves what the parameters compute, up to the last bit of float32 in products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.class_mapping import ABSENT, ClassMapping
from vit_jax.errors import WeightsError
from vit_jax.models.base import NO_NORM
from vit_jax.models.norms import BATCH_NORM_EPSILON
from vit_jax.models.positions import (
    EVERY_LAYER,
    EVERY_LAYER_SHARED,
    LEARNED_1D,
    LEARNED_2D,
    NO_BIAS,
    NO_POSITIONS,
    SINCOS_2D,
    STEM,
    sincos_2d,
)
from vit_jax.models.vit import CLASS_TOKEN_POOLING, ViTOptions
from vit_jax.parameters import HEAD_NORM
from vit_jax.weights.architecture import BIAS_OF_LAYERS, SHARED_BIAS
from vit_jax.weights.content import Weights

HEAD, HEAD_BIAS = "head/kernel", "head/bias"
HEADS = ("head/", "distillation_head/")  # What the names of their parameters begin with.
TABLE = "position_embedding"
POSITIONS = (TABLE, "relative_positions")  # What the names of position parameters contain.
PREFIX_TOKENS = ("class_token", "distillation_token", "registers")  # In their order.
# A factor of LayerScale -> the layer whose outputs it multiplies.
SCALED_LAYERS = {
    "blocks/layer_scale1": "blocks/attention/out",
    "blocks/layer_scale2": "blocks/mlp/dense2",
}


class Form(NamedTuple):
    """Parameters and all that gives them their meaning.

    Attributes:
      parameters: by name, of the size that `options` says.
      options: of the model that they make up.
      class_names: of its head's classes; empty: unknown.
      added: parameters that only the wanted model has, in its own size.
      changes: parameter -> how it was rewritten.
    """

    parameters: dict[str, np.ndarray]
    options: Any
    class_names: tuple[str, ...] = ()
    added: Mapping[str, np.ndarray] = {}
    changes: Mapping[str, str] = {}

    def change(
        self, parameters: Mapping[str, np.ndarray], note: str, drop: Sequence[str] = (), **options
    ) -> Form:
        """The form with some parameters replaced, some gone, and other options."""
        kept = {name: array for name, array in self.parameters.items() if name not in drop}
        return self._replace(
            parameters={**kept, **parameters},
            options=dataclasses.replace(self.options, **options),
            changes={**self.changes, **dict.fromkeys(parameters, note)},
        )

    def add(self, parameters: Mapping[str, np.ndarray], note: str, **options: Any) -> Form:
        """The form with parameters that the file has no word for."""
        return self._replace(
            added={**self.added, **parameters},
            options=dataclasses.replace(self.options, **options),
            changes={**self.changes, **dict.fromkeys(parameters, note)},
        )


def rewrite(
    weights: Weights,
    here: Any,
    shapes: Mapping[str, tuple[int, ...]],
    class_names: Sequence[str] = (),
    head_map: ClassMapping | None = None,
) -> Form:
    """The weights, as near to the model as they come without computing something else.

    Args:
      weights: from a file, of the model's family.
      here: the model's options, complete.
      shapes: of its parameters, by name.
      class_names: of its classes; empty: unknown.
      head_map: which of the file's classes those are; None: only those of the same list.
    """
    form = Form(dict(weights.parameters), weights.options, weights.model_file.class_names)
    names = tuple(class_names)
    form = keep_rows(form, names, head_map) if head_map else order_classes(form, names)
    form = fold_head_norm(form, here)
    if not isinstance(here, ViTOptions):
        return form
    form = average_pixels(form, here, weights)
    form = fold_position_rows(form, here)
    form = fold_layer_scale(form, here)
    form = add_layer_scale(form, here)
    form = spread_positions(form, here)
    form = add_positions(form, here, shapes)
    form = spread_bias(form, here)
    form = add_bias(form, here, shapes)
    if form.options.pooling == here.pooling == CLASS_TOKEN_POOLING:  # The norm is each token's own.
        form = form.change({}, "", norm_after_pooling=here.norm_after_pooling)
    return form


def order_classes(form: Form, names: tuple[str, ...]) -> Form:
    """The head's columns in the model's order, where both sides name the same classes."""
    there = form.class_names
    if there == names or len(set(names)) < len(names) or sorted(there) != sorted(names):
        return form
    return take_classes(form, [there.index(name) for name in names], names, "in the data's order")


def keep_rows(form: Form, names: tuple[str, ...], head_map: ClassMapping) -> Form:
    """The head's columns of the model's classes; masked for those that the file does not have.

    Raises:
      WeightsError: it has none of them, or no head.
      ConfigError: the mapping does not fit both lists.
    """
    if HEAD not in form.parameters:
        raise WeightsError(f"{head_map.origin}: the file has no head whose rows could be kept.")
    columns = head_map.find(names, form.class_names, form.options.num_classes)
    absent = columns == ABSENT
    if absent.all():
        raise WeightsError(
            f"{head_map.origin}: the file has none of the data's classes, which are "
            f"{', '.join(names[:5])}; it has {', '.join(form.class_names[:5]) or 'no names'}: give a "
            "file of lines with the data's name, a tab, and the name there, or its row's number if it "
            "has no names."
        )
    note = f"{np.sum(~absent):,} of {len(names):,} classes kept"
    form = take_classes(form, columns, names, note)
    if not absent.any():
        return form
    heads = {name: array for name, array in form.parameters.items() if name.startswith(HEADS)}
    masked = {
        name: np.ma.masked_array(array, np.broadcast_to(absent, array.shape))
        for name, array in heads.items()
    }
    return form.change(masked, f"{note}, the others fresh: {names[np.argmax(absent)]!r}, ...")


def take_classes(form: Form, columns: Sequence[int], names: Sequence[str], note: str) -> Form:
    """The form whose head has the given columns of the file's head."""
    head = {name: array for name, array in form.parameters.items() if name.startswith(HEADS)}
    taken = {name: array[..., list(columns)] for name, array in head.items()}
    form = form._replace(class_names=tuple(names))
    return form.change(taken, note, num_classes=len(columns))


def fold_head_norm(form: Form, here: Any) -> Form:
    """The running statistics before the head as part of it, for a model without."""
    if (
        here.head_norm != NO_NORM
        or form.options.head_norm == NO_NORM
        or HEAD not in form.parameters
    ):
        return form
    head, statistics = plain_head(form.parameters)
    return form.change(head, "with the norm before it", drop=statistics, head_norm=NO_NORM)


def plain_head(
    parameters: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], tuple[str, str]]:
    """The head that alone does what it and the batch norm before it do, and that one's parameters."""
    kernel, bias = (parameters[name].astype(np.float64) for name in (HEAD, HEAD_BIAS))
    names = (f"{HEAD_NORM}/mean", f"{HEAD_NORM}/variance")
    mean, variance = (parameters[name].astype(np.float64) for name in names)
    kernel = kernel / np.sqrt(variance + BATCH_NORM_EPSILON)[:, None]
    bias = bias - mean @ kernel
    return {HEAD: kernel.astype(np.float32), HEAD_BIAS: bias.astype(np.float32)}, names


def average_pixels(form: Form, here: Any, weights: Weights) -> Form:
    """The first layer for pixels that are normalised by their channels' average.

    (pixel - mean_c) / std_c is linear in (pixel - mean) / std, and the layer pads nothing. A stem
    does pad, and standardises its kernel: it is left alone.
    """
    preprocessing = weights.model_file.preprocessing
    averaged = preprocessing.for_channels(here.channels)
    names = ("embedding/kernel", "embedding/bias")
    kernel, bias = (form.parameters.get(name) for name in names)
    if averaged == preprocessing or kernel is None or kernel.shape[-2] != form.options.channels:
        return form
    mean, std = np.float64(averaged.mean), np.float64(averaged.std)
    means, stds = np.float64(preprocessing.mean), np.float64(preprocessing.std)
    shift = np.broadcast_to((mean - means) / stds, form.options.channels)
    bias = bias + np.einsum("pqcd,c->d", kernel.astype(np.float64), shift)
    kernel = kernel * np.broadcast_to(std / stds, form.options.channels)[:, None]
    arrays = (array.astype(np.float32) for array in (kernel, bias))
    return form.change(dict(zip(names, arrays, strict=True)), "for pixels' average mean and std")


def fold_position_rows(form: Form, here: Any) -> Form:
    """Adds the position rows of the prefix tokens to these, for a model without such rows."""
    there = form.options
    rows = there.num_prefix_tokens * there.prefix_positions
    learned = there.positions == here.positions == LEARNED_1D
    at_stem = there.position_placement == here.position_placement == STEM
    if not (rows and learned and at_stem) or here.prefix_positions:
        return form
    table, folded = form.parameters[TABLE], {}
    first = 0
    for name in PREFIX_TOKENS:
        if (tokens := form.parameters.get(name)) is not None:
            end = first + tokens.shape[1]
            folded[name] = tokens + table[:, first:end]
            first = end
    form = form.change(folded, "with its position row")
    return form.change({TABLE: table[:, rows:]}, "rows of tokens folded", prefix_positions=False)


def fold_layer_scale(form: Form, here: Any) -> Form:
    """Multiplies LayerScale's factors into the layers before them, for a model without."""
    if here.layer_scale or not form.options.layer_scale:
        return form
    for factor, layer in SCALED_LAYERS.items():
        factors = form.parameters[factor]  # [L, D]
        names = [f"{layer}/kernel", f"{layer}/bias"]
        arrays = {name: form.parameters[name] for name in names if name in form.parameters}
        scaled = {
            name: array * factors.reshape(len(factors), *[1] * (array.ndim - 2), -1)
            for name, array in arrays.items()
        }
        form = form.change(scaled, f"times {factor}", drop=[factor])
    return form.change({}, "", layer_scale=0.0)


def add_layer_scale(form: Form, here: Any) -> Form:
    """Factors of 1, for a model that has LayerScale where the file has none."""
    if form.options.layer_scale or not here.layer_scale:
        return form
    ones = np.ones((here.depth, here.width), np.float32)
    return form.add(dict.fromkeys(SCALED_LAYERS, ones), "1", layer_scale=here.layer_scale)


def spread_positions(form: Form, here: Any) -> Form:
    """Columns' and rows' halves as one table with an entry for each patch."""
    there = form.options
    same_placement = there.position_placement == here.position_placement
    if (there.positions, here.positions) != (LEARNED_2D, LEARNED_1D) or not same_placement:
        return form
    name = next(name for name in form.parameters if name.endswith(f"{TABLE}/rows"))
    name = name.removesuffix("/rows")
    halves = (f"{name}/columns", f"{name}/rows")
    columns, rows = (form.parameters[half] for half in halves)  # [..., C, D/2], [..., R, D/2]
    shape = (*rows.shape[:-1], *columns.shape[-2:])
    table = np.concatenate(
        [
            np.broadcast_to(columns[..., None, :, :], shape),
            np.broadcast_to(rows[..., :, None, :], shape),
        ],
        axis=-1,
    )
    table = table.reshape(*table.shape[:-3], 1, -1, table.shape[-1])
    options = {"positions": LEARNED_1D, "prefix_positions": False}
    return form.change({name: table}, "of columns and rows", drop=halves, **options)


def add_positions(form: Form, here: Any, shapes: Mapping[str, tuple[int, ...]]) -> Form:
    """Learned positions that begin as none at all, or as the fixed ones, where the file has those."""
    there = form.options
    wanted = {name: s for name, s in shapes.items() if any(part in name for part in POSITIONS)}
    options = {"positions": here.positions, "position_placement": here.position_placement}
    if there.positions == NO_POSITIONS and wanted:
        zeros = {name: np.zeros(shape, np.float32) for name, shape in wanted.items()}
        return form.add(zeros, "0: the file has no positions", **options)
    same_placement = there.position_placement == here.position_placement
    if (there.positions, here.positions) != (SINCOS_2D, LEARNED_1D) or not same_placement:
        return form
    table = sincos_2d(here.grid[0], here.grid[1], here.width)
    missing = wanted[TABLE][-2] - table.shape[-2]
    table = np.pad(table, ((0, 0), (missing, 0), (0, 0)))
    return form.add({TABLE: table}, "the file's fixed positions", **options)


def spread_bias(form: Form, here: Any) -> Form:
    """The relative position bias that all layers share as one of each: BEiT is fine-tuned so."""
    kinds = form.options.relative_position_bias, here.relative_position_bias
    if kinds != (EVERY_LAYER_SHARED, EVERY_LAYER):
        return form
    table = form.parameters[SHARED_BIAS]
    spread = {BIAS_OF_LAYERS: np.repeat(table[None], form.options.depth, axis=0)}
    note = "each layer's is what they shared"
    return form.change(spread, note, drop=[SHARED_BIAS], relative_position_bias=EVERY_LAYER)


def add_bias(form: Form, here: Any, shapes: Mapping[str, tuple[int, ...]]) -> Form:
    """A relative position bias of 0, for a model that has one where the file has none."""
    if form.options.relative_position_bias != NO_BIAS or here.relative_position_bias == NO_BIAS:
        return form
    name = BIAS_OF_LAYERS if here.relative_position_bias == EVERY_LAYER else SHARED_BIAS
    zeros = {name: np.zeros(shapes[name], np.float32)}
    note = "0: the file has no relative position bias"
    return form.add(zeros, note, relative_position_bias=here.relative_position_bias)
