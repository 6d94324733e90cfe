"""What a model has learned about patches and their positions (Figures 7 left, 7 centre and 10)."""

from __future__ import annotations

import numpy as np
from flax import nnx

from vit_jax.analysis.captured import require_tokens
from vit_jax.analysis.components import principal_axes
from vit_jax.errors import ConfigError
from vit_jax.models.base import ImageClassifier
from vit_jax.models.positions import EVERY_LAYER, TABLES


def position_similarity(model: ImageClassifier) -> np.ndarray:
    """Cosine similarities of the position embeddings of all patches (Figures 7 centre and 10).

    Args:
      model: with a table of positions.

    Returns:
      float32 [rows, columns, rows, columns]: of the patch at the first two to that at the others.

    Raises:
      ConfigError: the model has no one table.
    """
    transformer = require_tokens(model, "similarity of position embeddings")
    options = transformer.options
    if options.positions not in TABLES or options.position_placement == EVERY_LAYER:
        raise ConfigError(
            f"similarity of position embeddings needs one table: model.positions="
            f"{options.positions!r} with model.position_placement={options.position_placement!r} has "
            "none."
        )
    table = np.asarray(transformer.position_table())[0, options.num_prefix_tokens :]
    table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return (table @ table.T).reshape(*options.grid, *options.grid)


def embedding_filters(model: ImageClassifier, count: int = 28) -> np.ndarray:
    """The principal components of the filters that see the image's pixels (Figure 7 left).

    Those of the patch embedding; of a hybrid or a ResNet those of its first convolution.

    Args:
      model: any.
      count: of components, the largest first; fewer if the model has fewer filters.

    Returns:
      float32 [count, P, Q, C], each scaled to 0 … 1 by its own lowest and highest value.
    """
    kernel = first_kernel(model)
    components = principal_axes(kernel.reshape(-1, kernel.shape[-1]).T)
    chosen = components[:count].reshape(-1, *kernel.shape[:3])
    lowest, highest = (f(chosen, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return ((chosen - lowest) / np.maximum(highest - lowest, 1e-12)).astype(np.float32)


def first_kernel(model: ImageClassifier) -> np.ndarray:
    """The kernel [P, Q, C, D] of the layer that sees the image's pixels."""
    kernels = {
        "/".join(map(str, path)): node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Param) and node.ndim == 4 and path[-1] == "kernel"
    }
    roots = sorted(name for name in kernels if name.endswith("conv_root/kernel"))
    name = roots[0] if roots else "embedding/kernel"
    if name not in kernels:
        raise ConfigError(f"{model.name} has no filters of pixels.")
    return np.asarray(kernels[name][...])
