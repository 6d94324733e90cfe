"""Position embeddings: what a Vision Transformer knows about the position of a patch (Table 8)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.errors import ConfigError

NO_POSITIONS, RELATIVE, ROTARY_2D = "none", "relative", "rotary_2d"
LEARNED_1D, LEARNED_2D, SINCOS_2D = "learned_1d", "learned_2d", "sincos_2d"
LEARNED_1D_ROTARY_2D = "learned_1d_rotary_2d"  # both, as in EVA-02
# Kinds that are added to the tokens; those of them with one learned table; those that rotate.
TABLES = (LEARNED_1D, LEARNED_2D, SINCOS_2D, LEARNED_1D_ROTARY_2D)
LEARNED_TABLES = (LEARNED_1D, LEARNED_1D_ROTARY_2D)
ROTARY = (ROTARY_2D, LEARNED_1D_ROTARY_2D)
POSITIONS = (*TABLES, RELATIVE, ROTARY_2D, NO_POSITIONS)
INDICES, CENTRED = "indices", "centred"  # What rotary positions count in.

STEM, EVERY_LAYER, EVERY_LAYER_SHARED = "stem", "every_layer", "every_layer_shared"
PLACEMENTS = (STEM, EVERY_LAYER, EVERY_LAYER_SHARED)

NO_BIAS = "none"
RELATIVE_POSITION_BIASES = (NO_BIAS, EVERY_LAYER, EVERY_LAYER_SHARED)
PREFIX_PAIRS = 3  # A token that is no patch with a patch, a patch with it, two of them.


def check_positions(options: Any) -> None:
    """Raises ConfigError for positions that contradict a model's other options."""
    kind, placement = options.positions, options.position_placement
    chosen, head_width = f"model.positions={kind!r}", options.width // options.num_heads
    divisor = {LEARNED_2D: 2, SINCOS_2D: 4}.get(kind, 1)
    if options.width % divisor or (kind == SINCOS_2D and options.width < 8):
        raise ConfigError(f"{chosen}: model.width={options.width} must be a multiple of {divisor}.")
    if kind in ROTARY and (head_width % 4 or options.rotary_temperature < 1):
        raise ConfigError(
            f"{chosen}: model.width / model.num_heads = {head_width} must be a multiple of 4, and "
            f"model.rotary_temperature={options.rotary_temperature} at least 1."
        )
    if placement != STEM:
        if kind not in TABLES:
            raise ConfigError(
                f"{chosen} has no table to add: model.position_placement must be 'stem', "
                f"not {placement!r}."
            )
        if kind == SINCOS_2D and placement == EVERY_LAYER:
            raise ConfigError(
                f"{chosen} is one fixed table: model.position_placement must be 'stem' or "
                "'every_layer_shared', not 'every_layer'."
            )
    if options.patch_dropout_rate and (reason := why_all_patches(options)):
        raise ConfigError(
            f"model.patch_dropout_rate={options.patch_dropout_rate} needs positions that are "
            f"added at the stem, not {reason}."
        )


def why_all_patches(options: Any) -> str:
    """The options for which the blocks have to see the whole grid of patches, or ""."""
    if options.relative_position_bias != NO_BIAS:
        return f"model.relative_position_bias={options.relative_position_bias!r}"
    if options.positions in (RELATIVE, *ROTARY) or options.position_placement != STEM:
        return (
            f"model.positions={options.positions!r} with model.position_placement="
            f"{options.position_placement!r}"
        )
    return ""


class LearnedGrid(nnx.Module):
    """Learned 2-D positions: a table of D/2 for the columns (X) and one for the rows (Y)."""

    def __init__(self, options: Any, rngs: nnx.Rngs):
        rows, columns = options.grid
        half = options.width // 2
        self.columns = nnx.Param(
            options.position_std * jax.random.normal(rngs.params(), (columns, half))
        )
        self.rows = nnx.Param(options.position_std * jax.random.normal(rngs.params(), (rows, half)))

    def table(self) -> jax.Array:
        """[1, rows · columns, D] float32: the column's half, then the row's."""
        columns, rows = self.columns[...], self.rows[...]
        shape = (len(rows), len(columns), rows.shape[-1])
        halves = (
            jnp.broadcast_to(columns[None, :], shape),
            jnp.broadcast_to(rows[:, None], shape),
        )
        return jnp.concatenate(halves, axis=-1).reshape(1, shape[0] * shape[1], -1)


def learned_positions(options: Any, rngs: nnx.Rngs) -> nnx.Param | LearnedGrid | None:
    """The parameters of one position table, drawn from N(0, position_std); None if it has none.

    Learned 1-D: [1, N, D] in row order, preceded by rows for the class token and the registers
    with `prefix_positions`.
    """
    if options.positions == LEARNED_2D:
        return LearnedGrid(options, rngs)
    if options.positions in LEARNED_TABLES:
        length = options.num_patches + options.num_prefix_tokens * options.prefix_positions
        shape = (1, length, options.width)
        return nnx.Param(options.position_std * jax.random.normal(rngs.params(), shape))
    return None


def position_table(learned: nnx.Param | LearnedGrid | None, options: Any) -> jax.Array:
    """The table [1, S, D] float32 to add to the tokens; zero for tokens without a position."""
    if options.positions in LEARNED_TABLES:
        table = learned[...]  # type: ignore[index]
    elif options.positions == LEARNED_2D:
        table = learned.table()
    else:
        rows, columns = options.grid
        table = jnp.asarray(sincos_2d(rows, columns, options.width))
    missing = options.num_tokens - table.shape[1]
    return jnp.pad(table, ((0, 0), (missing, 0), (0, 0)))


def on_another_grid(
    table: jax.Array, num_prefix: int, old: tuple[int, int], new: tuple[int, int]
) -> jax.Array:
    """A table [1, P + rows · columns, D] resampled to other rows and columns, as gradients flow.

    Bicubic without antialiasing, as DINO's views have it (arXiv 2104.14294); the P rows of tokens
    that are no patches stay.
    """
    prefix, grid = table[:, :num_prefix], table[:, num_prefix:]
    grid = grid.reshape(1, *old, -1)
    shape = (1, *new, grid.shape[-1])
    grid = jax.image.resize(grid, shape, "cubic", antialias=False)
    return jnp.concatenate([prefix, grid.reshape(1, -1, grid.shape[-1])], axis=1)


def sincos_2d(rows: int, columns: int, width: int) -> np.ndarray:
    """Fixed 2-D positions of MoCo v3 (arXiv 2104.02057): [1, rows · columns, width] float32.

    The features are sin x, cos x, sin y, cos y of width/4 frequencies 1 ... 1/10,000 each;
    `width` is a multiple of 4 and at least 8.
    """
    frequencies = 10_000.0 ** -(np.arange(width // 4) / (width // 4 - 1))
    y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1) * frequencies
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=-1)
    return table[None].astype(np.float32)


def relative_logits(query: jax.Array, table: jax.Array) -> jax.Array:
    """The bias q_i · r_{i-j} of relative attention (arXiv 1803.02155, appendix D.4 of the paper).

    Args:
      query: [..., S, H, d], already divided by sqrt(d).
      table: [2S - 1, d], the embedding r of each offset from -(S - 1) to S - 1, shared by the
        heads. Offsets are between positions in the sequence, where the class token comes first.

    Returns:
      [..., H, S, S] float32, to be added to the attention's logits.
    """
    length = query.shape[-3]
    offsets = np.arange(length)[:, None] - np.arange(length) + length - 1
    embeddings = table.astype(query.dtype)[offsets]
    return jnp.einsum("...qhd,qkd->...hqk", query, embeddings, preferred_element_type=jnp.float32)


def num_offsets(grid: tuple[int, int]) -> int:
    """The number of different offsets between two patches of a grid, in rows and columns."""
    rows, columns = grid
    return (2 * rows - 1) * (2 * columns - 1)


def bias_table(options: Any) -> nnx.Param:
    """The parameters of a relative position bias, 0 at first: [offsets (+ 3), heads] float32.

    A row for each offset between two patches, from the most negative, the columns' fastest; with
    tokens before the patches, the three rows of their pairs.
    """
    length = num_offsets(options.grid) + PREFIX_PAIRS * (options.num_prefix_tokens > 0)
    return nnx.Param(jnp.zeros((length, options.num_heads)))


def relative_position_bias(table: jax.Array, options: Any) -> jax.Array:
    """What BEiT adds to attention's logits (arXiv 2106.08254): [H, S, S] float32.

    A number for each head and offset between query and key on the grid, whatever they hold, where
    `relative_logits` takes a product with the query. The tokens before the patches have no offsets:
    they share the last three rows, for one of them looking at a patch, a patch at one of them, and
    they at one another.

    Args:
      table: as of `bias_table`.
      options: grid, num_prefix_tokens.
    """
    (rows, columns), heads = options.grid, table.shape[-1]
    offsets = table[: num_offsets(options.grid)].reshape(2 * rows - 1, 2 * columns - 1, heads)
    # Products with zeros and ones are exact, and quicker than looking up, above all backwards.
    down, right = offsets_one_hot(rows), offsets_one_hot(columns)
    bias = jnp.einsum("qka,abh,plb->hqpkl", down, offsets, right, precision="highest")
    bias = bias.reshape(heads, rows * columns, rows * columns)
    if not options.num_prefix_tokens:
        return bias
    to_patches, from_patches, among = table[-PREFIX_PAIRS:, :, None, None]
    prefix, patches = options.num_prefix_tokens, rows * columns

    def repeated(numbers: jax.Array, queries: int, keys: int) -> jax.Array:
        return jnp.broadcast_to(numbers, (heads, queries, keys))

    first = repeated(among, prefix, prefix), repeated(to_patches, prefix, patches)
    rest = repeated(from_patches, patches, prefix), bias
    return jnp.concatenate([jnp.concatenate(part, axis=2) for part in (first, rest)], axis=1)


def offsets_one_hot(length: int) -> np.ndarray:
    """1 at the offset of each query and key on a line, else 0: [length, length, 2 length - 1]."""
    line = np.arange(length)
    return np.eye(2 * length - 1, dtype=np.float32)[line[:, None] - line + length - 1]


def rotary_angles(options: Any) -> np.ndarray:
    """Angles of 2-D rotary positions, [S, d/2] float32, for heads of d features (arXiv 2104.09864).

    d/4 features turn with the row, d/4 with the column, with frequencies from 1 down to almost
    1 / rotary_temperature. Rows and columns are counted from 0, in steps of the grid that
    `rotary_reference` is the side of (EVA-02, arXiv 2303.11331); or lie between -2π and 2π,
    "centred" (DINOv3, arXiv 2508.10104). Tokens before the patches are not turned.
    """
    quarter = options.width // options.num_heads // 4
    frequencies = options.rotary_temperature ** -(np.arange(quarter) / quarter)
    lines = []
    for length in options.grid:
        line = np.arange(length, dtype=np.float64)
        if options.rotary_coordinates == CENTRED:
            line = 2 * np.pi * ((line + 0.5) / length * 2 - 1)
        elif options.rotary_reference:
            line = line / length * options.rotary_reference
        lines.append(line)
    positions = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (positions * frequencies).reshape(len(positions), -1)
    return np.pad(angles, ((options.num_prefix_tokens, 0), (0, 0))).astype(np.float32)


def rotate(x: jax.Array, angles: np.ndarray) -> jax.Array:
    """Turns features i and i + d/2 of [..., S, H, d] by the angles [S, d/2]; float32 inside."""
    sin, cos = np.sin(angles)[:, None], np.cos(angles)[:, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
