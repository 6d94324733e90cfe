"""The layers that several families share, and the scan over stacked blocks.

Parameters are float32 and computed with in the options' `dtype`; statistics of norms and softmax
are float32. `options` is any options class with the fields a layer reads.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.attention import FUSED, JOINT, Fused, even_length
from vit_jax.models.dropout import HASHED, dropout
from vit_jax.models.norms import layer_norm
from vit_jax.models.positions import relative_logits, rotary_angles, rotate
from vit_jax.models.products import kernel_product
from vit_jax.models.remat import name_result, rematerialize
from vit_jax.models.softmax import softmax

DENSE_MLP, SWIGLU = "dense", "swiglu"

GELU = {
    "tanh": lambda x: jax.nn.gelu(x, approximate=True),  # the reference
    "erf": lambda x: jax.nn.gelu(x, approximate=False),  # timm, Hugging Face
    "quick": lambda x: x * jax.nn.sigmoid(1.702 * x),  # OpenAI's CLIP
}

LINEAR, CONSTANT = "linear", "constant"
STOCHASTIC_DEPTH_SCHEDULES = (LINEAR, CONSTANT)

xavier_uniform = nnx.initializers.xavier_uniform()
lecun_normal = nnx.initializers.lecun_normal()
nearly_zero = nnx.initializers.normal(1e-6)


def split(key: jax.Array | None, num: int) -> list[jax.Array | None]:
    """`num` keys from one; no keys from none."""
    return [None] * num if key is None else list(jax.random.split(key, num))


def drop_rates(rate: float, schedule: str, depth: int) -> jax.Array | None:
    """Each block's rate of stochastic depth, [depth] float32; None without it.

    "linear" grows from 0 at the first block to `rate` at the last.
    """
    if rate == 0:
        return None
    return jnp.linspace(0 if schedule == LINEAR else rate, rate, depth)


def stochastic_depth(
    x: jax.Array, rate: jax.Array | None, key: jax.Array | None, *, rescaled: bool = True
) -> jax.Array:
    """Zeroes a residual branch per image with probability `rate` (arXiv 1603.09382).

    The others are divided by 1 - `rate` if `rescaled`. The identity without a key or a rate; `rate`
    may be traced.
    """
    if key is None or rate is None:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, (len(x),) + (1,) * (x.ndim - 1))
    return jnp.where(keep, (x / (1 - rate)).astype(x.dtype) if rescaled else x, 0)


class Attention(nnx.Module):
    """Multi-head attention (equations 5 to 8 of the paper).

    Args:
      options: width, num_heads, attention, attention_dropout_rate, dropout_bits,
        position_std, norm_epsilon, dtype.
      rngs: for the initial parameters.
      qkv_bias: queries, keys and values have biases.
      query_key_norm: LayerNorm on the queries and keys of each head.
      relative_length: length of the sequence whose relative positions bias the logits; 0: none.
      rotary: queries and keys are turned by their positions on the options' grid.
      out_norm: LayerNorm before the output's layer.
    """

    def __init__(
        self,
        options: Any,
        rngs: nnx.Rngs,
        *,
        qkv_bias: bool = True,
        query_key_norm: bool = False,
        relative_length: int = 0,
        rotary: bool = False,
        out_norm: bool = False,
    ):
        width, heads, dtype = options.width, options.num_heads, options.dtype
        kwargs = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        heads_of = functools.partial(
            nnx.LinearGeneral, width, (heads, width // heads), use_bias=qkv_bias, **kwargs
        )
        self.query, self.key, self.value = heads_of(), heads_of(), heads_of()
        self.out = nnx.LinearGeneral((heads, width // heads), width, axis=(-2, -1), **kwargs)
        if query_key_norm:
            self.query_norm = layer_norm(width // heads, options, rngs)
            self.key_norm = layer_norm(width // heads, options, rngs)
        if relative_length:
            shape = (2 * relative_length - 1, width // heads)
            self.relative_positions = nnx.Param(
                options.position_std * jax.random.normal(rngs.params(), shape)
            )
        if out_norm:
            self.norm = layer_norm(width, options, rngs)
        self.query_key_norm, self.relative = query_key_norm, relative_length > 0
        self.rotary_options, self.out_norm = options if rotary else None, out_norm
        self.dropout_rate = options.attention_dropout_rate
        self.dropout_bits = options.dropout_bits
        self.fused, self.joint = FUSED.get(options.attention), options.attention == JOINT

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None = None,
        memory: jax.Array | None = None,
        bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Attends from x [..., Q, D] to memory [..., K, D] (x itself if none).

        `bias` [H, Q, K], if there is one, is added to the logits.

        Returns:
          The values [..., Q, D], and the weights [..., H, Q, K] float32 after the softmax.
        """
        memory = x if memory is None else memory
        queries, keys = x.shape[-2], memory.shape[-2]
        fused = self.fused_for(key) if bias is None else None
        if fused and self.rotary_options is None:  # Here it is part of what is written anyway.
            x, memory = even_length(x, -2), even_length(memory, -2)
        if self.joint and memory is x:
            query, key_, value = joint([self.query, self.key, self.value], x)
        else:
            query, key_, value = self.query(x), self.key(memory), self.value(memory)
        query, key_ = name_result(query, "query"), name_result(key_, "key")
        value = name_result(value, "value")
        if self.query_key_norm:
            query, key_ = self.query_norm(query), self.key_norm(key_)
        if self.rotary_options is not None:
            angles = rotary_angles(self.rotary_options)
            query, key_ = rotate(query, angles), rotate(key_, angles)
        # Where a kernel is used, and nobody looks at the weights, they are not computed.
        weights = self.weights(query[..., :queries, :, :], key_[..., :keys, :, :], bias)
        if fused:
            y = fused(query, key_, value, (queries, keys))
        else:
            dropped = dropout(weights, self.dropout_rate, key, self.dropout_bits)
            y = jnp.einsum("...hqk,...khd->...qhd", dropped.astype(value.dtype), value)
        if self.out_norm:
            y = self.norm(y.reshape(*y.shape[:-2], -1)).reshape(y.shape)
        return name_result(self.out(y), "out")[..., :queries, :], weights

    def fused_for(self, key: jax.Array | None) -> Fused | None:
        """The kernel, unless it cannot do what is to be done; `key` as for the call."""
        dropping = key is not None and self.dropout_rate > 0
        return None if self.relative or dropping else self.fused

    def weights(self, query: jax.Array, key: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        """The softmax over keys of products with queries, scaled by 1 / sqrt(d) (equation 6 of the paper).

        What relative positions add, if there are any, comes before the softmax.

        Args:
          query: [..., Q, H, d], d the size of a head.
          key: [..., K, H, d].
          bias: [H, Q, K] float32, as for the call.

        Returns:
          [..., H, Q, K] float32.
        """
        query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
        logits = jnp.einsum("...qhd,...khd->...hqk", query, key, preferred_element_type=jnp.float32)
        if self.relative:
            logits = logits + relative_logits(query, self.relative_positions[...])
        if bias is not None:
            logits = logits + bias
        return softmax(logits)


def joint(layers: Sequence[nnx.LinearGeneral], x: jax.Array) -> list[jax.Array]:
    """The outputs [..., H, d] of layers for the same input [..., D], by one product.

    All layers have biases, or none. A CPU's library is quicker with one wide product than with several
    narrow ones.
    """
    first = layers[0]
    kernel = jnp.concatenate([layer.kernel[...] for layer in layers], 1)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    bias = jnp.concatenate([bias[...] for bias in biases]) if biases else None
    x, kernel, bias = first.promote_dtype((x, kernel, bias), dtype=first.dtype)
    y = jnp.tensordot(x, kernel, 1)
    return jnp.split(y if bias is None else y + bias, len(layers), -2)


def linear(width: int, features: int, options: Any, rngs: nnx.Rngs, **inits: Any) -> nnx.Linear:
    """A layer [..., width] -> [..., features] of an MLP; `options`: dtype."""
    kwargs: dict[str, Any] = {"dot_general": kernel_product, "dtype": options.dtype, "rngs": rngs}
    return nnx.Linear(width, features, **kwargs, **inits)


class MLP(nnx.Module):
    """Dense, GELU, Dense, with dropout after both; `options`: gelu, dtype.

    With `inner_norm` a LayerNorm stands before the second layer; `options`: norm_epsilon.
    """

    def __init__(
        self,
        width: int,
        hidden_width: int,
        options: Any,
        rngs: nnx.Rngs,
        *,
        dropout_rate: float = 0.0,
        dropout_bits: int = HASHED,
        kernel_init: Callable = xavier_uniform,
        bias_init: Callable = nearly_zero,
        inner_norm: bool = False,
    ):
        inits: dict[str, Any] = {"kernel_init": kernel_init, "bias_init": bias_init}
        self.dense1 = linear(width, hidden_width, options, rngs, **inits)
        self.dense2 = linear(hidden_width, width, options, rngs, **inits)
        self.gelu, self.dropout_rate, self.dropout_bits = options.gelu, dropout_rate, dropout_bits
        self.inner_norm = inner_norm
        if inner_norm:
            self.norm = layer_norm(hidden_width, options, rngs)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """[..., D] -> [..., D]."""
        key1, key2 = split(key, 2)
        rate, bits = self.dropout_rate, self.dropout_bits
        x = dropout(self.hidden(x), rate, key1, bits)
        x = self.norm(x) if self.inner_norm else x
        return dropout(name_result(self.dense2(x), "dense2"), rate, key2, bits)

    def hidden(self, x: jax.Array) -> jax.Array:
        """The input of the second layer, before dropout and norm: [..., D] -> [..., M]."""
        return GELU[self.gelu](name_result(self.dense1(x), "dense1"))


class SwiGLU(MLP):
    """dense2(SiLU(gate(x)) · dense1(x)) (arXiv 2002.05202), with dropout after both; `options`: dtype."""

    def __init__(self, width: int, hidden_width: int, options: Any, rngs: nnx.Rngs, **kwargs: Any):
        inits: dict[str, Any] = {"kernel_init": xavier_uniform, "bias_init": nearly_zero}
        self.gate = linear(width, hidden_width, options, rngs, **inits)
        super().__init__(width, hidden_width, options, rngs, **kwargs)

    def hidden(self, x: jax.Array) -> jax.Array:
        """See `MLP.hidden`."""
        gate, hidden = name_result(self.gate(x), "gate"), name_result(self.dense1(x), "dense1")
        return jax.nn.silu(gate) * hidden


@functools.partial(jax.tree_util.register_dataclass, data_fields=["stored"], meta_fields=["make"])
@dataclasses.dataclass(frozen=True)
class Deferred:
    """A parameter of stacked blocks that is made layer by layer, where `scan_blocks` uses it.

    So no more than one layer of it has to be there at a time: the backward pass makes it again, unless
    remat is "none", which keeps it.

    Attributes:
      stored: what it is made of, with a leading layer axis.
      make: a layer's entry of `stored` -> the layer's parameter.
    """

    stored: jax.Array
    make: Callable[[jax.Array], jax.Array]


def is_deferred(leaf: Any) -> bool:
    """Whether a leaf of parameters is `Deferred`."""
    return isinstance(leaf, Deferred)


def has_deferred(parameters: Any) -> bool:
    """Whether any leaf of parameters is `Deferred`."""
    return any(map(is_deferred, jax.tree.leaves(parameters, is_leaf=is_deferred)))


def made(parameters: Any) -> Any:
    """A layer's parameters, those that are `Deferred` made."""

    def make(leaf: Any) -> Any:
        return leaf.make(leaf.stored) if is_deferred(leaf) else leaf

    return jax.tree.map(make, parameters, is_leaf=is_deferred)


def scan_blocks(
    blocks: nnx.Module, x: jax.Array, per_layer: Any, apply: Callable, options: Any
) -> tuple[jax.Array, Any]:
    """x through stacked blocks, one after the other.

    Args:
      blocks: a module whose parameters all have a leading layer axis.
      x: [B, ..., D].
      per_layer: a tree of arrays with a leading layer axis, such as keys.
      apply: (block, x, layer's entry of per_layer) -> (x, outputs).
      options: remat, scan_unroll.

    Returns:
      The last block's x, and the outputs with a leading layer axis.
    """
    graphdef, parameters = nnx.split(blocks)

    def step(x: jax.Array, layer: tuple) -> tuple[jax.Array, Any]:
        layer_parameters, layer_inputs = layer
        return apply(nnx.merge(graphdef, made(layer_parameters)), x, layer_inputs)

    unroll = 1 if options.scan_unroll == "auto" else min(options.scan_unroll, options.depth)
    # A loop prevents that what is made anew is kept instead; without one it has to be said.
    anew = has_deferred(parameters) and unroll > 1
    step = rematerialize(step, options.remat, prevent_cse=anew)
    return jax.lax.scan(step, x, (parameters, per_layer), unroll=unroll)
