"""Fits parameters from a file to another model: what fits is taken, what can be resized is.

First they are rewritten as far towards the model as leaves their function as it is
(`vit_jax.weights.equivalence`). Nothing is silent: each parameter is a row of the report, loaded,
rewritten, resized, fresh or skipped.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.class_mapping import ClassMapping
from vit_jax.errors import WeightsError
from vit_jax.models.base import ModelOptions
from vit_jax.models.positions import PREFIX_PAIRS, num_offsets
from vit_jax.parameters import LAYERS, layer_names
from vit_jax.tables import format_table
from vit_jax.weights import equivalence
from vit_jax.weights.architecture import BIAS_OF_LAYERS, SHARED_BIAS, family_name
from vit_jax.weights.content import AVERAGED, Weights
from vit_jax.weights.equivalence import HEAD, HEADS, Form
from vit_jax.weights.mapping import fill_name
from vit_jax.weights.resampling import (
    AUTO,
    resize_bias,
    resize_channels,
    resize_matrix,
    resize_patches,
    resize_positions,
)

# Options that no resize can bridge.
FIXED_OPTIONS = (
    "width",
    "depth",
    "mlp_width",
    "num_heads",
    "query_key_norm",
    "mlp",
    "mlp_norm",
    "attention_norm",
    "pre_norm",
    "final_norm",
    "token_mlp_width",
    "stage_depths",
    "width_factor",
    "preactivation",
    "stem_depths",
    "stem_width_factor",
)
# Options that leave all shapes alone but change what the parameters compute.
SILENT_OPTIONS = (
    "gelu",
    "norm_epsilon",
    "group_norm_epsilon",
    "kernel_epsilon",
    "stem_group_norm_epsilon",
    "stem_kernel_epsilon",
    "pooling",
    "distillation_token",
    "norm_after_pooling",
    "pool_padding",
    "positions",
    "position_placement",
    "relative_position_bias",
    "rotary_temperature",
    "rotary_coordinates",
    "rotary_reference",
)
HEAD_OPTIONS = (
    "num_classes",
    "representation_size",
    "head_norm",
)  # Heads of other models are of no use.
ROOT = "conv_root/kernel"  # what a ResNet's first convolution ends in

Shape = tuple[int, ...]


class Row(NamedTuple):
    """The treatment of one parameter."""

    status: str  # loaded | rewritten | resized | fresh | skipped
    name: str  # ours; for tensors that the model has no parameter for, the file's
    source: Shape | None  # shape in the file
    target: Shape | None  # shape in the model
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The treatment of each parameter; `str(report)` is a table."""

    path: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def count(self, status: str) -> int:
        """Number of rows with that status."""
        return sum(row.status == status for row in self.rows)

    def __str__(self) -> str:
        statuses = ("loaded", "rewritten", "resized", "fresh", "skipped")
        counts = ", ".join(f"{self.count(status)} {status}" for status in statuses)
        cells = [
            (row.status, row.name, format_shape(row.source), format_shape(row.target), row.note)
            for row in self.rows
        ]
        cells.insert(0, ("", "parameter", "in the file", "in the model", ""))
        headline = f"Weights from {self.path}: {counts}."
        return "\n".join([headline, format_table(cells, indent="  "), *self.notes])


def format_shape(shape: Shape | None) -> str:
    """A shape as "12×768×768", or "–" for none."""
    return "–" if shape is None else "×".join(map(str, shape)) or "scalar"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a file's parameters become those of a model.

    The head is kept only for the same number of classes, the same names where both sides name
    them, and the same representation; with `head_map` the rows of the classes that both sides have.
    """

    weights: Weights
    options: ModelOptions  # of the model, complete
    class_names: Sequence[str] = ()  # of the model; empty: it has none
    head_map: ClassMapping | None = None  # which of the file's classes those are, to keep its rows
    skip: str = (
        ""  # Names that match start fresh: ours, `blocks/07/mlp/dense1/kernel`, or the file's.
    )
    position_resize: str = AUTO

    def apply(
        self, shapes: Mapping[str, Shape], fresh: Callable[[str], Any]
    ) -> tuple[dict[str, Any], Report]:
        """Parameters by name, and what became of each; single layers that start fresh are masked.

        Args:
          shapes: of the model's parameters, by name.
          fresh: gives a parameter's initial value, by name.

        Raises:
          WeightsError: the architectures differ, or nothing in the file is used.
        """
        self.check_architecture()
        form = equivalence.rewrite(
            self.weights, self.options, shapes, self.class_names, self.head_map
        )
        if self.head_map and (why := self.why_fresh(form, HEAD, np.array([False]))):
            raise WeightsError(
                f"{self.weights.path}: {self.head_map.origin} keeps the head's rows, but there are none "
                f"that fit ({why})."
            )
        parameters, rows = {}, []
        for name, shape in shapes.items():
            parameters[name], row = self.adapt(form, name, shape, fresh)
            rows.append(row)
        if all(row.status == "fresh" for row in rows):
            raise WeightsError(f"{self.weights.path}: not one parameter of the model is in it.")
        if self.skip and not any(self.skipped_layers(*item).any() for item in shapes.items()):
            raise WeightsError(
                f"init_skip={self.skip!r} matches no parameter; the first names are "
                f"{', '.join(list(shapes)[:3])}."
            )
        for name, array in form.parameters.items():
            if name not in shapes:
                rows.append(Row("skipped", name, array.shape, None, "the model has none"))
        rows += [Row("skipped", name, None, None, "unknown") for name in self.weights.unknown]
        return parameters, Report(self.weights.path, tuple(rows), tuple(self.notes(form)))

    def adapt(
        self, form: Form, name: str, shape: Shape, fresh: Callable[[str], Any]
    ) -> tuple[Any, Row]:
        """One parameter and its row of the report."""
        source = self.weights.parameters.get(name)
        source_shape = None if source is None else source.shape
        skipped = self.skipped_layers(name, shape)
        if note := self.why_fresh(form, name, skipped):
            return fresh(name), Row("fresh", name, source_shape, shape, note)
        array, note = form.added.get(name), ""
        if array is None:
            array, note = self.resize(form, name)
        if array.shape != shape:
            raise WeightsError(
                f"{self.weights.path}: {name} has shape {array.shape}, but the model's is {shape}. "
                f"Leave it out with init_skip={name!r}, or change the model."
            )
        change = form.changes.get(name, "")
        status = "resized" if note else "rewritten" if change else "loaded"
        note = ", ".join(filter(None, [change, note]))
        if skipped.any():
            mask = skipped.reshape(-1, *[1] * (array.ndim - 1))
            array = np.ma.masked_array(array, np.broadcast_to(mask, array.shape))
            note = f"{skipped.sum()} of {len(skipped)} layers fresh: {self.skip!r}"
        return array, Row(status, name, source_shape, shape, note)

    def check_architecture(self) -> None:
        """Raises WeightsError for a difference that no resize can bridge."""
        there, here = self.weights.options, self.options
        if type(there) is not type(here):
            raise WeightsError(
                f"{self.weights.path} holds a {family_name(type(there))}, not a "
                f"{family_name(type(here))}."
            )
        for option, (theirs, ours) in differing(there, here, FIXED_OPTIONS):
            raise WeightsError(
                f"{self.weights.path} has {option}={theirs}, the model {option}={ours}: set "
                f"model.{option}={theirs}, or choose the model that the weights are of."
            )

    def notes(self, form: Form) -> Iterator[str]:
        """Assumptions, and differences that change what the parameters compute."""
        if self.weights.assumed:
            yield f"Assumed, as nothing says it: {', '.join(self.weights.assumed)}."
        yield from (f"Note: {remark}." for remark in self.weights.remarks)
        there, here = self.weights.options, self.options
        if there.channels != here.channels:
            yield from self.channel_notes()
        for option, values in differing(form.options, here, SILENT_OPTIONS):
            yield "Note: the weights are for {0}={1!r}; the model has {0}={2!r}.".format(
                option, *values
            )

    def channel_notes(self) -> Iterator[str]:
        """The reason that keeps the model from computing the same with other channels."""
        channels, preprocessing = self.options.channels, self.weights.model_file.preprocessing
        if not any(name.endswith(ROOT) for name in self.weights.parameters):
            return
        yield (
            "Note: the first convolution is standardised over its channels too, so with "
            f"{channels} of them its outputs are scaled differently: fine-tune the model."
        )
        if preprocessing.for_channels(channels) != preprocessing:
            yield f"Note: {AVERAGED}, so the first layer sees other pixels: fine-tune the model."

    def skipped_layers(self, name: str, shape: Shape) -> np.ndarray:
        """Whether `skip` matches: bool [layers] for a stacked parameter, else [1]."""
        ours = layer_names(name, shape)
        theirs = self.weights.file_names.get(name, name)
        both = ((our, fill_name(theirs, {"layer": layer})) for layer, our in enumerate(ours))
        return np.array(
            [bool(self.skip) and any(re.search(self.skip, n) for n in names) for names in both]
        )

    def why_fresh(self, form: Form, name: str, skipped: np.ndarray) -> str:
        """Why a parameter is not taken from the file; "" if it is."""
        if name not in form.parameters and name not in form.added:
            return "not in the file"
        if skipped.all():
            return f"{self.skip!r}"
        if not name.startswith(HEADS):
            return ""
        for option, (theirs, _) in differing(form.options, self.options, HEAD_OPTIONS):
            return f"{option}={theirs} in the file"
        names = form.class_names
        if names and self.class_names and tuple(names) != tuple(self.class_names):
            return "other class names in the file"
        return ""

    def resize(self, form: Form, name: str) -> tuple[np.ndarray, str]:
        """The parameter in the model's size, and what was done; "" for nothing."""
        array, there, here = form.parameters[name], form.options, self.options
        chosen, weights = self.position_resize, self.weights
        method = weights.position_resize if chosen == AUTO else chosen
        if name.endswith(ROOT):
            return resize_embedding(array, array.shape[:2], here.channels)
        if name == "embedding/kernel":
            return resize_embedding(array, here.patch_size, here.stem_channels)
        if name in ("position_embedding", LAYERS + "position_embedding"):
            return fit_positions(array, there, here, method)
        if name in (BIAS_OF_LAYERS, SHARED_BIAS):
            return fit_bias(array, there, here, weights.bias_resize if chosen == AUTO else chosen)
        if name.endswith(("position_embedding/rows", "position_embedding/columns")):
            axis = 0 if name.endswith("rows") else 1
            return fit_line(array, there.grid[axis], here.grid[axis], method)
        return array, ""


def differing(there: Any, here: Any, options: Sequence[str]) -> Iterator[tuple[str, tuple]]:
    """The options that both models have and that differ, with both values."""
    for option in options:
        values = getattr(there, option, None), getattr(here, option, None)
        if values[0] != values[1]:
            yield option, values


def resize_embedding(
    kernel: np.ndarray, patch_size: tuple[int, int], channels: int
) -> tuple[np.ndarray, str]:
    """The patch embedding's kernel for another patch size and number of channels, and a note."""
    notes = []
    if kernel.shape[:2] != patch_size:
        notes.append(f"patches {format_shape(kernel.shape[:2])} → {format_shape(patch_size)}")
        kernel = resize_patches(kernel, patch_size)
    if kernel.shape[2] != channels:
        notes.append(f"channels {kernel.shape[2]} → {channels}")
        kernel = resize_channels(kernel, channels)
    return kernel, ", ".join(notes)


def fit_positions(table: np.ndarray, there: Any, here: Any, method: str) -> tuple[np.ndarray, str]:
    """Position embeddings [..., N, D] on the model's grid, with rows for its prefix tokens."""
    notes = []
    if there.grid != here.grid:
        notes.append(f"grid {format_shape(there.grid)} → {format_shape(here.grid)}, {method}")
        table = resize_positions(table, there.grid, here.grid, method)
    had, wanted = prefix_rows(there), prefix_rows(here)
    if had != wanted:
        notes.append(f"rows before the patches {len(had)} → {len(wanted)}")
        rows = {token: table[..., i : i + 1, :] for i, token in enumerate(had)}
        zeros = np.zeros((*table.shape[:-2], 1, table.shape[-1]), table.dtype)
        prefix = [rows.get(token, zeros) for token in wanted]
        table = np.concatenate([*prefix, table[..., len(had) :, :]], axis=-2)
    return table, ", ".join(notes)


def prefix_rows(options: Any) -> list[str]:
    """The tokens whose rows of position embeddings precede the patches'."""
    if not options.prefix_positions:
        return []
    registers = [f"register {number}" for number in range(options.num_registers)]
    class_token = ["class token"] * options.has_class_token
    return [*class_token, *["distillation token"] * options.distillation_token, *registers]


def fit_bias(table: np.ndarray, there: Any, here: Any, method: str) -> tuple[np.ndarray, str]:
    """A relative position bias [..., offsets (+ 3), H] on the model's grid, for its prefix tokens."""
    notes = []
    if there.grid != here.grid:
        notes.append(f"grid {format_shape(there.grid)} → {format_shape(here.grid)}, {method}")
        table = resize_bias(table, there.grid, here.grid, method)
    had, wanted = (PREFIX_PAIRS * (options.num_prefix_tokens > 0) for options in (there, here))
    if had != wanted:
        notes.append(f"rows of the tokens before the patches {had} → {wanted}")
        patches = table[..., : num_offsets(here.grid), :]
        zeros = np.zeros((*table.shape[:-2], wanted, table.shape[-1]), table.dtype)
        table = np.concatenate([patches, zeros], axis=-2)
    return table, ", ".join(notes)


def fit_line(table: np.ndarray, old: int, new: int, method: str) -> tuple[np.ndarray, str]:
    """One half of learned 2-D positions, [..., rows or columns, D/2], at the model's length."""
    if old == new:
        return table, ""
    return resize_matrix(old, new, method) @ table, f"{old} → {new}, {method}"
