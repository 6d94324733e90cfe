"""The directions in which features vary most."""

from __future__ import annotations

import numpy as np


def principal_axes(features: np.ndarray) -> np.ndarray:
    """The principal components of features [N, D] as unit vectors, the largest first.

    Returns:
      float64 [min(N, D), D]; each one's sign is such that its largest weight is above 0.
    """
    centered = np.asarray(features, np.float64) - np.mean(features, axis=0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return axes * np.sign(largest)
