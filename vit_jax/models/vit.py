"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929).

    tokens = [class token; patches · E] + E_pos                    (equation 1)
    tokens = tokens + MSA(LN(tokens)); tokens + MLP(LN(tokens))    (equations 2 and 3), L times
    y      = LN(tokens)[class token]                               (equation 4)

Parameters are float32 and named by their path (`blocks/attention/query/kernel`). The blocks are
stacked: each of their parameters has a leading layer axis, and `jax.lax.scan` runs over it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.models.attention import ATTENTIONS
from vit_jax.models.base import (
    ATTENTION_WEIGHTS,
    AUTO,
    BLOCK_OUTPUTS,
    NO_NORM,
    PATCH_EMBEDDINGS,
    PRE_LOGITS,
    Constrain,
    ImageClassifier,
    mean_pool,
    require_at_least,
    require_not_negative,
    require_one_of,
    require_rates,
    require_unroll,
    unconstrained,
)
from vit_jax.models.blocks import MLPS, Block
from vit_jax.models.dropout import BITS, dropout
from vit_jax.models.layers import (
    DENSE_MLP,
    GELU,
    LINEAR,
    STOCHASTIC_DEPTH_SCHEDULES,
    SWIGLU,
    drop_rates,
    lecun_normal,
    scan_blocks,
    split,
)
from vit_jax.models.norms import layer_norm
from vit_jax.models.patches import PatchEmbedding, PatchOptions, drop_patches
from vit_jax.models.pooling import AttentionPooling
from vit_jax.models.positions import (
    CENTRED,
    EVERY_LAYER,
    EVERY_LAYER_SHARED,
    INDICES,
    LEARNED_1D,
    NO_BIAS,
    PLACEMENTS,
    POSITIONS,
    RELATIVE,
    RELATIVE_POSITION_BIASES,
    STEM,
    TABLES,
    bias_table,
    check_positions,
    learned_positions,
    on_another_grid,
    position_table,
    relative_position_bias,
)

CLASS_TOKEN_POOLING, AVERAGE_POOLING, ATTENTION_POOLING = "token", "average", "attention"
DRAWN = ("kernel", "class_token", "distillation_token")  # by `kernel_std`


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTOptions(PatchOptions):
    """Everything that defines a Vision Transformer; each field is a keyword of `create_model`."""

    depth: int  # L, the number of blocks
    mlp_width: int  # the MLP's hidden size
    num_heads: int

    positions: str = LEARNED_1D  # or "learned_2d", "sincos_2d", "relative", "rotary_2d", "none"
    position_placement: str = STEM  # or "every_layer", "every_layer_shared"
    position_std: float = 0.02  # spread of the initial position embeddings
    kernel_std: float = 0.0  # spread of the initial kernels, the head's too; 0: the reference's
    prefix_positions: bool = True  # learned_1d has rows for the tokens before the patches
    relative_position_bias: str = NO_BIAS  # BEiT's: "every_layer" or "every_layer_shared"

    class_token: bool | None = None  # None: if the pooling needs one
    distillation_token: bool = False  # a second one, with a head of its own (arXiv 2012.12877)
    num_registers: int = 0  # learned tokens without a use of their own (arXiv 2309.16588)
    pooling: str = CLASS_TOKEN_POOLING  # or over the patches: "average", "attention" (MAP)
    norm_after_pooling: bool = False  # the final norm, timm's fc_norm; else on every token
    representation_size: int = 0  # width of the tanh layer before the head; 0: none

    dropout_rate: float = 0.0  # after every dense layer but q, k, v, and after the positions
    attention_dropout_rate: float = 0.0  # on the attention weights; 0 in every published recipe
    dropout_bits: int = 16  # of a hash, that decide on an element; or threefry's 32, as before
    stochastic_depth_rate: float = 0.0  # of dropping a residual branch
    stochastic_depth_schedule: str = LINEAR  # from 0 to the rate over the depth; or "constant"
    patch_dropout_rate: float = 0.0  # share of patches left out in training (arXiv 2212.00794)
    layer_scale: float = 0.0  # initial factors on the branches (arXiv 2103.17239); 0: none
    query_key_norm: bool = False  # LayerNorm on queries and keys (arXiv 2302.05442)
    rotary_temperature: float = 10_000.0  # of rotary positions: their longest period over 2π
    rotary_coordinates: str = INDICES  # or "centred" (DINOv3)
    rotary_reference: int = 0  # side of the grid that indices are scaled to (EVA-02); 0: its own
    attention_norm: bool = False  # LayerNorm before the attention's last layer (BEiT-3, EVA-02)
    mlp_norm: bool = False  # LayerNorm before the MLP's last layer
    qkv_bias: bool = True  # queries, keys and values have biases
    mlp: str = DENSE_MLP  # or "swiglu" (arXiv 2002.05202)
    gelu: str = "tanh"  # or "erf", or OpenAI's "quick"
    pre_norm: bool = False  # LayerNorm before the blocks, patches without bias (CLIP)
    final_norm: bool = True  # LayerNorm after the blocks
    attention: str = AUTO  # or "xla", "joint", "cudnn": what computes it
    scan_unroll: int | str = AUTO  # blocks per iteration of the scan

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "depth", "mlp_width", "num_heads")
        require_unroll(self)
        require_at_least(self, 0, "num_registers", "representation_size", "rotary_reference")
        require_not_negative(self, "position_std", "kernel_std", "layer_scale")
        require_rates(self, "dropout_rate", "attention_dropout_rate")
        require_rates(self, "stochastic_depth_rate", "patch_dropout_rate")
        require_one_of(
            self,
            positions=POSITIONS,
            position_placement=PLACEMENTS,
            relative_position_bias=RELATIVE_POSITION_BIASES,
            pooling=(CLASS_TOKEN_POOLING, AVERAGE_POOLING, ATTENTION_POOLING),
            stochastic_depth_schedule=STOCHASTIC_DEPTH_SCHEDULES,
            gelu=GELU,
            attention=(AUTO, *ATTENTIONS),
            dropout_bits=BITS,
            mlp=MLPS,
            rotary_coordinates=(INDICES, CENTRED),
        )
        if self.width % self.num_heads:
            raise ConfigError(
                f"model.width={self.width} is not divisible by model.num_heads={self.num_heads}."
            )
        check_positions(self)
        if self.pooling == CLASS_TOKEN_POOLING and self.class_token is False:
            raise ConfigError(
                "model.pooling='token' needs model.class_token: set it, or pool by 'average'."
            )
        if self.distillation_token and self.head_norm != NO_NORM:
            raise ConfigError(
                f"model.head_norm={self.head_norm!r} needs one head, and model.distillation_token "
                "brings a second."
            )
        if self.distillation_token and self.pooling != CLASS_TOKEN_POOLING:
            raise ConfigError(
                f"model.distillation_token needs model.pooling='token', not {self.pooling!r}."
            )

    @property
    def has_class_token(self) -> bool:
        """Whether a class token precedes the patches."""
        needed = self.pooling == CLASS_TOKEN_POOLING
        return needed if self.class_token is None else self.class_token

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens that precede the patches: class token, distillation token, registers."""
        return self.has_class_token + self.distillation_token + self.num_registers

    @property
    def num_tokens(self) -> int:
        """Length of the sequence the blocks see."""
        return self.num_prefix_tokens + self.num_patches

    def macs(self) -> int:
        """Multiply-accumulates of one image's forward pass; dense layers and attention only."""
        representation = (1 + self.distillation_token) * self.width * self.representation_size
        heads = 1 + self.distillation_token
        head = heads * (self.representation_size or self.width) * self.num_classes
        tokens = self.embedding_macs() + self.encoder_macs() + self.pooling_macs()
        return tokens + representation + head

    def encoder_macs(self) -> int:
        """Multiply-accumulates of the blocks."""
        return self.sequence_macs(self.num_tokens)

    def sequence_macs(self, num_tokens: int) -> int:
        """Multiply-accumulates of the blocks on a sequence of another length."""
        mlp_layers = 3 if self.mlp == SWIGLU else 2
        dense = num_tokens * (4 * self.width**2 + mlp_layers * self.width * self.mlp_width)
        products = 3 if self.positions == RELATIVE else 2
        return self.depth * (dense + products * num_tokens**2 * self.width)

    def pooling_macs(self) -> int:
        """Multiply-accumulates of attention pooling; the other kinds have none."""
        if self.pooling != ATTENTION_POOLING:
            return 0
        projections = 2 * (self.num_patches + 1) * self.width**2
        attention = projections + 2 * self.num_patches * self.width
        return attention + 2 * self.width * self.mlp_width


class VisionTransformer(ImageClassifier):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32."""

    INTERMEDIATES: ClassVar = (PATCH_EMBEDDINGS, BLOCK_OUTPUTS, ATTENTION_WEIGHTS, PRE_LOGITS)
    BLOCK: ClassVar[Callable[..., nnx.Module]] = Block
    options: ViTOptions

    def __init__(self, options: ViTOptions, rngs: nnx.Rngs):
        super().__init__(options, options.representation_size or options.width, rngs)
        self.embedding = PatchEmbedding(options, rngs, has_bias=not options.pre_norm)
        if options.has_class_token:
            self.class_token = nnx.Param(jnp.zeros((1, 1, options.width)))
        if options.distillation_token:
            self.distillation_token = nnx.Param(jnp.zeros((1, 1, options.width)))
            if options.num_classes:
                self.distillation_head = self.make_head(self.head.in_features, rngs)
        if options.num_registers:  # Not all zero, or they would stay equal to one another.
            shape = (1, options.num_registers, options.width)
            self.registers = nnx.Param(1e-6 * jax.random.normal(rngs.params(), shape))
        if options.position_placement != EVERY_LAYER:
            learned = learned_positions(options, rngs)
            if learned is not None:
                self.position_embedding = learned
        if options.relative_position_bias == EVERY_LAYER_SHARED:
            self.relative_position_bias = bias_table(options)
        if options.pre_norm:
            self.pre_norm = layer_norm(options.width, options, rngs)
        make_blocks = nnx.vmap(lambda rngs: self.BLOCK(options, rngs), axis_size=options.depth)
        self.blocks = make_blocks(rngs.split(options.depth))
        exact = dataclasses.replace(options, dtype="float32")  # It ends in the head.
        last = exact if options.norm_after_pooling else options
        if options.final_norm:
            self.norm = layer_norm(options.width, last, rngs)
        if options.pooling == ATTENTION_POOLING:
            self.attention_pooling = AttentionPooling(options, rngs)
        if options.representation_size:
            self.pre_logits = nnx.Linear(
                options.width, options.representation_size, kernel_init=lecun_normal, rngs=rngs
            )
        if options.kernel_std:
            self.draw_kernels(options.kernel_std, rngs)

    def draw_kernels(self, std: float, rngs: nnx.Rngs) -> None:
        """Draws kernels and prefix tokens anew, all from one normal distribution (DeiT, timm).

        It is cut at two deviations, and the head is not zero then. A hybrid's stem is left alone.
        """
        draw = nnx.initializers.truncated_normal(std)
        for path, node in nnx.iter_graph(self):
            if isinstance(node, nnx.Param) and path[-1] in DRAWN:
                node[...] = draw(rngs.params(), node.shape)

    def features(
        self,
        images: jax.Array,
        key: jax.Array | None,
        constrain: Constrain,
        capture: tuple[str, ...],
    ) -> tuple[jax.Array, dict[str, Any]]:
        """See `ImageClassifier.features`."""
        embed_key, encode_key = split(key, 2)
        patches = self.embed_patches(images, constrain)
        tokens = constrain(self.embed_sequence(patches, embed_key))
        tokens, captured = self.encode(tokens, encode_key, constrain, capture)
        return self.pool(tokens), {PATCH_EMBEDDINGS: patches, **captured}

    def embed_patches(self, images: jax.Array, constrain: Constrain = unconstrained) -> jax.Array:
        """Images [B, H, W, C] -> patches [B, N, D], row by row; `constrain` is for a stem's maps."""
        return self.embedding(images)

    def embed_sequence(
        self,
        patches: jax.Array,
        key: jax.Array | None = None,
        grid: tuple[int, int] | None = None,
    ) -> jax.Array:
        """Patches [B, N, D] -> the tokens [B, S, D] of the first block (equation 1).

        Args:
          patches: of images of the model's size, or of another one.
          key: as for the call.
          grid: rows and columns of the patches, where they are not the model's own.
        """
        options = self.options
        dropout_key, patch_key = split(key, 2)
        prefix = [self.class_token[...]] if options.has_class_token else []
        prefix += [self.distillation_token[...]] if options.distillation_token else []
        prefix += [self.registers[...]] if options.num_registers else []
        prefix = [
            jnp.broadcast_to(tokens.astype(patches.dtype), (len(patches), *tokens.shape[1:]))
            for tokens in prefix
        ]
        tokens = jnp.concatenate([*prefix, patches], axis=1)
        if options.position_placement == STEM and options.positions in TABLES:
            tokens = tokens + self.position_table(grid).astype(tokens.dtype)
        tokens = dropout(tokens, options.dropout_rate, dropout_key, options.dropout_bits)
        rate = options.patch_dropout_rate
        tokens = drop_patches(tokens, options.num_prefix_tokens, rate, patch_key)
        return self.pre_norm(tokens) if options.pre_norm else tokens

    def position_table(self, grid: tuple[int, int] | None = None) -> jax.Array:
        """The table [1, S, D] float32, of the model's own or of another grid of patches.

        With `every_layer` each layer has its own.
        """
        options, learned = self.options, getattr(self, "position_embedding", None)
        table = position_table(learned, options)
        if grid in (None, options.grid):
            return table
        return on_another_grid(table, options.num_prefix_tokens, options.grid, grid)

    def encode(
        self,
        tokens: jax.Array,
        key: jax.Array | None = None,
        constrain: Constrain = unconstrained,
        capture: tuple[str, ...] = (),
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Tokens [B, S, D] through all blocks (equations 2 and 3), and the captured values."""
        options = self.options
        keys = None if key is None else jax.random.split(key, options.depth)
        schedule = options.stochastic_depth_schedule
        rates = drop_rates(options.stochastic_depth_rate, schedule, options.depth)
        shared = None
        if options.position_placement == EVERY_LAYER_SHARED:
            shared = self.position_table().astype(tokens.dtype)
        biases: tuple[jax.Array, ...] = ()
        if options.relative_position_bias == EVERY_LAYER_SHARED:
            biases = (relative_position_bias(self.relative_position_bias[...], options),)

        def apply(block: nnx.Module, tokens: jax.Array, layer: tuple) -> tuple[jax.Array, dict]:
            tokens = tokens if shared is None else tokens + shared
            tokens, weights = block(tokens, *layer, *biases)
            tokens = constrain(tokens)
            outputs = {BLOCK_OUTPUTS: tokens, ATTENTION_WEIGHTS: weights}
            return tokens, {name: outputs[name] for name in outputs if name in capture}

        return scan_blocks(self.blocks, tokens, (keys, rates), apply, options)

    def pool(self, tokens: jax.Array) -> jax.Array:
        """Tokens [B, S, D] of the last block -> representation [B, R] float32 (equation 4).

        With a distillation token [B, 2R]: the class token's, then that one's.
        """
        options, tokens = self.options, self.normalize_tokens(tokens)
        if options.pooling == CLASS_TOKEN_POOLING:
            pooled = tokens[:, :2] if options.distillation_token else tokens[:, 0]
        elif options.pooling == AVERAGE_POOLING:
            pooled = mean_pool(tokens[:, options.num_prefix_tokens :])
        else:
            pooled = self.attention_pooling(tokens[:, options.num_prefix_tokens :])
        pooled = pooled.astype(jnp.float32)
        if options.norm_after_pooling and options.final_norm:
            pooled = self.norm(pooled)
        pooled = jnp.tanh(self.pre_logits(pooled)) if options.representation_size else pooled
        return pooled.reshape(len(tokens), -1)

    def classify(self, representation: jax.Array) -> jax.Array:
        """See `ImageClassifier.classify`; with a distillation token the mean of both heads."""
        if not (self.options.distillation_token and self.options.num_classes):
            return super().classify(representation)
        return self.classify_apart(representation).mean(axis=1)

    def classify_apart(self, representation: jax.Array) -> jax.Array:
        """Representation [B, 2R] -> logits [B, 2, K]: the class token's, the distillation token's."""
        parts = zip(
            (self.head, self.distillation_head), jnp.split(representation, 2, axis=-1), strict=True
        )
        return jnp.stack([head(part) for head, part in parts], axis=1)
