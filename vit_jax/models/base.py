"""Shared by every family: the options the trainer knows, the call, the head, the intermediates."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.kinds import shown
from vit_jax.models.norms import BatchNorm
from vit_jax.models.remat import AUTO, DOTS, FULL, NAMES, NONE, SEPARATOR, is_remat

PATCH_EMBEDDINGS, BLOCK_OUTPUTS = "patch_embeddings", "block_outputs"
ATTENTION_WEIGHTS, PRE_LOGITS = "attention_weights", "pre_logits"
LOGITS = "logits"
CLASS_TOKEN, MEAN, PATCHES = "class_token", "mean", "patches"
EMBEDDINGS = (PRE_LOGITS, CLASS_TOKEN, MEAN, PATCHES)

FIELD_KINDS: dict[
    Any, tuple[Any, str]
] = {  # An option's type -> what it may be, and in words; integers are checked by range.
    bool: (bool, "true or false"),
    bool | None: (bool | None, "true, false or None"),
    str: (str, "text"),
    float: (int | float, "a number"),
}

LARGEST = 10_000_000  # Of any number that an option is: classes, widths, pixels.
DEEPEST = 10_000  # Blocks; each has an entry in lists.

BATCH_NORM, NO_NORM = "batch", "none"
PRECISIONS = (AUTO, "default", "high", "highest")  # JAX's, and the one that `dtype` suggests.

Constrain = Callable[[jax.Array], jax.Array]


def unconstrained(x: jax.Array) -> jax.Array:
    """The identity: leaves the sharding of activations to the compiler."""
    return x


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of every model; a family adds its own. Each field is a keyword of `create_model`.

    Sizes are given as one integer or as (height, width); they are kept as pairs.
    """

    num_classes: int = 1000  # 0: no head, the model returns its representation
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    head_bias: float = 0.0  # initial value of the head's bias
    head_norm: str = NO_NORM  # or "batch": of the head's input, for linear probes (MAE's recipe)
    dtype: str = "float32"  # of the computation; parameters are always float32
    matmul_precision: str = AUTO  # JAX's of float32 products; auto: "highest" if dtype is float32
    remat: str = AUTO  # what the backward pass recomputes: see models/remat.py

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            kinds, words = FIELD_KINDS.get(field.type, (object, ""))
            if not isinstance(value := getattr(self, field.name), kinds):
                raise ConfigError(f"model.{field.name}={shown(value)}: must be {words}.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"model.{field.name}={value}: must be a finite number.")
            largest = DEEPEST if field.name == "depth" else LARGEST
            if isinstance(value, int | float) and value > largest:
                raise ConfigError(
                    f"model.{field.name}={shown(value)}: must be at most {largest:,}."
                )
        object.__setattr__(self, "image_size", as_pair("image_size", self.image_size))
        require_at_least(self, 0, "num_classes")
        require_at_least(self, 1, "channels")
        require_one_of(self, dtype=("float32", "bfloat16"))
        if not is_remat(self.remat):
            raise ConfigError(
                f"model.remat={shown(self.remat)}: must be one of {AUTO}, {NONE}, {FULL}, {DOTS}, or "
                f"what is kept, of {', '.join(NAMES)}, joined by {SEPARATOR!r}."
            )
        require_one_of(self, head_norm=(NO_NORM, BATCH_NORM))
        require_one_of(self, matmul_precision=PRECISIONS)

    def in_precision(self) -> contextlib.AbstractContextManager:
        """The context in which products are as precise as `matmul_precision` says.

        JAX's own default multiplies float32 in TF32 on GPUs and in bfloat16 on TPUs. "default" leaves
        it so, or as `jax.default_matmul_precision` has it around.
        """
        chosen = self.chosen_precision
        exact = chosen != "default"
        return jax.default_matmul_precision(chosen) if exact else contextlib.nullcontext()

    @property
    def chosen_precision(self) -> str:
        """`matmul_precision`; where it is left open, what suits `dtype`."""
        if self.matmul_precision != AUTO:
            return self.matmul_precision
        return "highest" if self.dtype == "float32" else "default"

    @property
    def num_tokens(self) -> int | None:
        """Length of the sequence the blocks see; None for a model without tokens."""
        return None

    def macs(self) -> int:
        """Multiply-accumulates of one image's forward pass; convolutions, dense layers, attention."""
        raise NotImplementedError


class ImageClassifier(nnx.Module):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32.

    A family implements `features`; it holds no random state.

    Attributes:
      options: complete.
      name: as `create_model` takes it.
      class_names, loss, preprocessing: of a loaded model, where its file has them.
    """

    name: str
    class_names: tuple[str, ...]
    loss: str
    preprocessing: Any

    INTERMEDIATES: ClassVar[tuple[str, ...]] = (PATCH_EMBEDDINGS, BLOCK_OUTPUTS, PRE_LOGITS)

    def __init__(self, options: ModelOptions, representation_size: int, rngs: nnx.Rngs):
        self.options = options
        if options.num_classes:
            self.head = self.make_head(representation_size, rngs)
            if options.head_norm == BATCH_NORM:
                self.head_norm = BatchNorm(representation_size)

    def make_head(self, representation_size: int, rngs: nnx.Rngs) -> nnx.Linear:
        """The linear layer from a representation to the classes; its kernel is zero at first."""
        return nnx.Linear(
            representation_size,
            self.options.num_classes,
            kernel_init=nnx.initializers.zeros,
            bias_init=nnx.initializers.constant(self.options.head_bias),
            rngs=rngs,
        )

    def features(
        self,
        images: jax.Array,
        key: jax.Array | None,
        constrain: Constrain,
        capture: tuple[str, ...],
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Everything before the head.

        Args:
          images, key, constrain: as for the call.
          capture: names of intermediates; what is not among them need not be computed.

        Returns:
          The representation [B, R] float32, and the intermediates before it by name.
        """
        raise NotImplementedError

    def __call__(
        self,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        constrain: Constrain = unconstrained,
    ) -> jax.Array:
        """Classifies images.

        Args:
          images: [B, H, W, C] float32, normalised as the weights expect (default [-1, 1]), of
            the size in `options.image_size`.
          key: a random key turns on training mode (dropout, stochastic depth); without one the
            model is deterministic.
          constrain: applied to the activations [B, ..., D] after the embedding and each block;
            where the trainer pins their sharding.

        Returns:
          Logits [B, num_classes] float32, or with `num_classes=0` the representation.
        """
        return self.outputs(images, key=key, constrain=constrain)[LOGITS]

    def outputs(
        self,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        constrain: Constrain = unconstrained,
        capture: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Logits and features at once; under jit, what the caller does not use costs nothing.

        Args:
          images, key, constrain: as for the call.
          capture: further intermediates that are wanted; see `intermediates`.

        Returns:
          `logits` [B, K], `pre_logits` [B, R], both float32, and the intermediates by name.
        """
        self.check_images(images)
        with self.options.in_precision():
            representation, captured = self.features(images, key, constrain, capture)
            logits = self.classify(representation)
        return {**captured, PRE_LOGITS: representation, LOGITS: logits}

    def classify(self, representation: jax.Array) -> jax.Array:
        """Representation [B, R] float32 -> logits [B, K] float32; itself without a head."""
        if not self.options.num_classes:
            return representation
        normed = self.options.head_norm == BATCH_NORM
        with self.options.in_precision():
            return self.head(self.head_norm(representation) if normed else representation)

    def intermediates(self, images: jax.Array, *names: str) -> dict[str, Any]:
        """The values that the model computes on the way to its logits, in evaluation mode.

        Args:
          images: as for the call.
          *names: any of
            "patch_embeddings": the input of the first block before positions and class token,
              [B, N, D]; of a ResNet the root's feature map, [B, H, W, D].
            "block_outputs": a sequence with one entry a block, [B, S, D] each; of a ResNet one
              entry a unit, [B, H, W, D].
            "attention_weights": a sequence with one entry a block, [B, heads, S, S] float32 after
              the softmax; axial models: see their docstrings. Computed only when asked for.
            "pre_logits": the input of the head, [B, R] float32.

        Returns:
          The values by name.

        Raises:
          ConfigError: a name this model does not have.
        """
        for name in names:
            if name not in self.INTERMEDIATES:
                raise ConfigError(
                    f"intermediate {name!r}: {type(self).__name__} has none of that name; "
                    f"it has {', '.join(self.INTERMEDIATES)}."
                )
        outputs = self.outputs(images, capture=names)
        return {name: outputs[name] for name in names}

    def embed(
        self, images: jax.Array, features: str = PRE_LOGITS, layer: int | None = None
    ) -> jax.Array:
        """Embeddings of images, in evaluation mode; float32.

        Args:
          images: as for the call.
          features: one of
            "pre_logits": the input of the head, [B, R].
            "class_token": [B, D].
            "mean": of the patches, without class token and registers, [B, D].
            "patches": all of them, row by row, [B, N, D].
          layer: the block whose output they are of, from 0, or from the end with -1; None: the
            last, with the norm that the model has behind it.

        Raises:
          ConfigError: the model has no such features or layer.
        """
        if features not in EMBEDDINGS:
            raise ConfigError(f"features={features!r}: must be one of {', '.join(EMBEDDINGS)}.")
        if features == PRE_LOGITS and layer is not None:
            raise ConfigError(f"layer={layer}: {PRE_LOGITS} are of no block; set features.")
        if features == PRE_LOGITS:
            return self.outputs(images)[PRE_LOGITS]
        blocks = self.outputs(images, capture=(BLOCK_OUTPUTS,))[BLOCK_OUTPUTS]
        if layer is not None and not -len(blocks) <= layer < len(blocks):
            raise ConfigError(
                f"layer={layer}: the model has {len(blocks)} blocks, 0 to {len(blocks) - 1}."
            )
        tokens = self.normalize_tokens(blocks[-1]) if layer is None else blocks[layer]
        tokens = tokens.reshape(len(tokens), -1, tokens.shape[-1]).astype(jnp.float32)
        if features == CLASS_TOKEN:
            if not getattr(self.options, "has_class_token", False):
                raise ConfigError(f"features={features!r}: the model has no class token.")
            return tokens[:, 0]
        patches = tokens[:, getattr(self.options, "num_prefix_tokens", 0) :]
        return patches if features == PATCHES else mean_pool(patches)

    def normalize_tokens(self, tokens: jax.Array) -> jax.Array:
        """The last block's output [B, ..., D] as pooling sees it: by the model's norm, if it is there."""
        after = getattr(self.options, "norm_after_pooling", False)
        return self.norm(tokens) if hasattr(self, "norm") and not after else tokens

    def check_images(self, images: jax.Array) -> None:
        """Raises ConfigError for images of another size than the model's, or not normalised."""
        expected = (*self.options.image_size, self.options.channels)
        if images.ndim != 4:
            found, remedy = "an array", ""
            if images.ndim == 3:
                found, remedy = "one image", ": images[None] is a batch of one"
            raise ConfigError(
                f"{found} of shape {images.shape} given to a model for batches [B, H, W, C]{remedy}."
            )
        if images.shape[1:] != expected:
            raise ConfigError(
                f"images of shape {images.shape[1:]} given to a model for {expected} "
                "(height, width, channels): set model.image_size and model.channels to the data's."
            )
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ConfigError(
                f"images are {images.dtype}, expected normalised floats: (pixels / 255 - mean) / "
                "std with those of model.preprocessing (default 0.5), as "
                "vit_jax.predict.load_images returns them."
            )


def as_pair(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """`size` as (height, width); raises ConfigError for anything but positive integers."""
    pair = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(pair) != 2 or not all(isinstance(side, int) and 0 < side <= LARGEST for side in pair):
        raise ConfigError(
            f"model.{name}={shown(size)}: must be a positive integer or a pair of them, at most "
            f"{LARGEST:,}."
        )
    return pair


def require_at_least(options: ModelOptions, minimum: int, *fields: str) -> None:
    """Raises ConfigError unless each field is an integer of at least `minimum`."""
    for field in fields:
        value = getattr(options, field)
        if not isinstance(value, int) or value < minimum:
            raise ConfigError(
                f"model.{field}={shown(value)}: must be an integer and at least {minimum}."
            )


def require_one_of(options: ModelOptions, **allowed: Any) -> None:
    """Raises ConfigError unless each field's value is among those allowed."""
    for field, values in allowed.items():
        if getattr(options, field) not in values:
            raise ConfigError(
                f"model.{field}={shown(getattr(options, field))}: must be one of "
                f"{', '.join(map(str, values))}."
            )


def require_unroll(options: ModelOptions, field: str = "scan_unroll") -> None:
    """Raises ConfigError unless the field is "auto", or an integer of at least 1."""
    if getattr(options, field) != AUTO:
        require_at_least(options, 1, field)


def require_not_negative(options: ModelOptions, *fields: str) -> None:
    """Raises ConfigError unless each field is a finite number and at least 0."""
    for field in fields:
        value = getattr(options, field)
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"model.{field}={shown(value)}: must be a number and at least 0.")


def require_rates(options: ModelOptions, *fields: str) -> None:
    """Raises ConfigError unless each field is in [0, 1)."""
    require_not_negative(options, *fields)
    for field in fields:
        if getattr(options, field) >= 1:
            raise ConfigError(f"model.{field}={getattr(options, field)}: must be in [0, 1).")


def mean_pool(x: jax.Array) -> jax.Array:
    """[B, ..., D] -> [B, D], averaged in float32 over all that lies between."""
    return x.astype(jnp.float32).mean(axis=tuple(range(1, x.ndim - 1)))
