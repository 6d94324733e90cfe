"""Position embeddings: what a Vision Transformer knows about the position of a patch (Table 8)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

NO_POSITIONS, RELATIVE = "none", "relative"
LEARNED_1D, LEARNED_2D, SINCOS_2D = "learned_1d", "learned_2d", "sincos_2d"
TABLES = (LEARNED_1D, LEARNED_2D, SINCOS_2D)  # kinds that are added to the tokens
POSITIONS = (*TABLES, RELATIVE, NO_POSITIONS)

STEM, EVERY_LAYER, EVERY_LAYER_SHARED = "stem", "every_layer", "every_layer_shared"
PLACEMENTS = (STEM, EVERY_LAYER, EVERY_LAYER_SHARED)


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
    if options.positions == LEARNED_1D:
        length = options.num_patches + options.num_prefix_tokens * options.prefix_positions
        shape = (1, length, options.width)
        return nnx.Param(options.position_std * jax.random.normal(rngs.params(), shape))
    return None


def position_table(learned: nnx.Param | LearnedGrid | None, options: Any) -> jax.Array:
    """The table [1, S, D] float32 to add to the tokens; zero for tokens without a position."""
    if options.positions == LEARNED_1D:
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
