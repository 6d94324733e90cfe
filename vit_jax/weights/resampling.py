"""Resizing what depends on the input's size: position embeddings, patches, channels."""

from typing import Any

import jax
import numpy as np

from vit_jax.errors import WeightsError

AUTO = "auto"  # the file's own library's
BILINEAR_CORNER, BILINEAR, BICUBIC = "bilinear_corner", "bilinear", "bicubic"
BICUBIC_TORCH = "bicubic_torch"
GEOMETRIC = "geometric"  # BEiT's own, for relative position biases alone
POSITION_RESIZES = (AUTO, BILINEAR_CORNER, BILINEAR, BICUBIC, BICUBIC_TORCH)
SMALLEST_RATIO, LARGEST_RATIO = 1.01, 1.5  # of distances, in BEiT's fine-tuning
RATIO_PRECISION = 1e-6
SHARPNESS = -0.75  # a of PyTorch's cubic kernel; that of antialiased resizes, and JAX's, is -0.5


def is_grid(grid: Any) -> bool:
    """Whether it is a pair of positive integers."""
    return (
        isinstance(grid, list | tuple)
        and len(grid) == 2
        and all(isinstance(side, int) and side > 0 for side in grid)
    )


def check_method(method: str) -> None:
    """Raises WeightsError for an unknown name of a resize."""
    if method not in POSITION_RESIZES:
        raise WeightsError(
            f"position_resize={method!r}: must be one of {', '.join(POSITION_RESIZES)}."
        )


def resize_matrix(old: int, new: int, method: str) -> np.ndarray:
    """The [new, old] float32 matrix that resamples a line of `old` points to `new`.

    `bilinear_corner` keeps the end points, as `scipy.ndimage.zoom(order=1)`;
    `bilinear` and `bicubic` are `jax.image.resize`'s "linear" without antialiasing and "cubic";
    `bicubic_torch` is PyTorch's cubic resize without antialiasing; `geometric` see there.
    """
    if method == GEOMETRIC:
        return geometric_matrix(old, new)
    if method == BICUBIC_TORCH:
        return cubic_matrix(old, new)
    if method == BILINEAR_CORNER:
        sources = np.arange(new) * ((old - 1) / max(new - 1, 1))
        distances = np.abs(sources[:, None] - np.arange(old))
        return np.maximum(0, 1 - distances).astype(np.float32)
    check_method(method)
    kind, antialias = {"bilinear": ("linear", False), "bicubic": ("cubic", True)}[method]
    identity = np.eye(old, dtype=np.float32)
    return np.asarray(jax.image.resize(identity, (new, old), kind, antialias=antialias))


def cubic_matrix(old: int, new: int) -> np.ndarray:
    """PyTorch's cubic resize without antialiasing, [new, old] float32; border points repeat."""
    sources = (np.arange(new) + 0.5) * (old / new) - 0.5
    taps = np.floor(sources).astype(int)[:, None] + np.arange(-1, 3)  # [new, 4]
    x = np.abs(sources[:, None] - taps)
    near = (SHARPNESS + 2) * x**3 - (SHARPNESS + 3) * x**2 + 1
    far = SHARPNESS * (x**3 - 5 * x**2 + 8 * x - 4)
    matrix = np.zeros((new, old))
    rows = np.broadcast_to(np.arange(new)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, old - 1)), np.where(x <= 1, near, far))
    return matrix.astype(np.float32)


def geometric_matrix(old: int, new: int) -> np.ndarray:
    """BEiT's resize of a line of offsets (arXiv 2106.08254, its code), [new, old] float32; both odd.

    The old points lie at geometrically growing distances from the middle, so that near offsets stay
    what they are and far ones reach the new border; between them it is linear, as in timm.
    """
    steps, reach = np.arange(old // 2), new // 2
    low, high = SMALLEST_RATIO, LARGEST_RATIO
    while high - low > RATIO_PRECISION:  # The ratio with which the old border becomes the new one.
        ratio = (low + high) / 2
        low, high = (low, ratio) if (ratio**steps).sum() > reach else (ratio, high)
    distances = np.cumsum(ratio**steps)
    points = np.concatenate([-distances[::-1], [0], distances])
    targets = np.arange(-reach, reach + 1)
    columns = [np.interp(targets, points, column) for column in np.eye(old)]
    return np.stack(columns, axis=1).astype(np.float32)


def resize_bias(
    table: np.ndarray, old_grid: tuple[int, int], new_grid: tuple[int, int], method: str
) -> np.ndarray:
    """Resamples a relative position bias to another grid of patches.

    Args:
      table: [..., offsets + others, heads], as of `vit_jax.models.positions.bias_table`.
      old_grid, new_grid: (rows, columns) of patches.
      method: "geometric", or one of `POSITION_RESIZES`.
    """
    old, new = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (old_grid, new_grid))
    others = table.shape[-2] - old[0] * old[1]
    first = np.roll(table, others, axis=-2)  # As those of position embeddings are.
    return np.roll(resize_positions(first, old, new, method), -others, axis=-2)


def resize_positions(
    table: np.ndarray,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    method: str = BILINEAR_CORNER,
) -> np.ndarray:
    """Resamples position embeddings to another grid of patches.

    Args:
      table: [..., prefix + rows · columns, D]; the prefix (class token) is kept as it is.
      old_grid: its (rows, columns).
      new_grid: the wanted (rows, columns).
      method: one of `POSITION_RESIZES`.
    """
    if old_grid == new_grid:
        return table
    patches = old_grid[0] * old_grid[1]
    prefix, grid = np.split(table, [table.shape[-2] - patches], axis=-2)
    rows, columns = (
        resize_matrix(old, new, method) for old, new in zip(old_grid, new_grid, strict=True)
    )
    *leading, _, width = table.shape
    grid = grid.reshape(*leading, *old_grid, width)
    grid = np.einsum("ir,jc,...rcd->...ijd", rows, columns, grid, optimize=True)
    return np.concatenate([prefix, grid.reshape(*leading, -1, width)], axis=-2)


def resize_patches(kernel: np.ndarray, new_size: tuple[int, int]) -> np.ndarray:
    """Resizes a patch embedding's kernel [P, Q, C, D] as FlexiViT does (arXiv 2212.08013, eq. 4).

    The pseudo-inverse of the bilinear resize: where patches grow, resized patches give the same
    tokens as before.
    """
    rows, columns = (
        np.linalg.pinv(resize_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], new_size, strict=True)
    )
    return np.einsum("ip,jq,pqcd->ijcd", rows, columns, kernel, optimize=True)


def resize_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Changes a kernel's [..., C, D] input channels.

    To one channel, the sum over C: a gray picture gives the tokens of its RGB copy, unless the
    kernel is standardised before its use. To more, the channels are repeated in turn and scaled by
    C / channels.
    """
    old = kernel.shape[-2]
    if channels == 1:
        return kernel.sum(axis=-2, keepdims=True)
    repeated = np.take(kernel, np.arange(channels) % old, axis=-2)
    return repeated * np.float32(old / channels)
