"""Losses of one example: (logits [B, K] float32, targets [B, K]) -> [B] float32."""

import jax
import jax.numpy as jnp


def softmax_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of the softmax with targets that sum to 1; fine-tuning's loss."""
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)


def sigmoid_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Binary cross-entropy of each class, summed over classes; pre-training's loss."""
    positive = targets * jax.nn.log_sigmoid(logits)
    negative = (1 - targets) * jax.nn.log_sigmoid(-logits)
    return -jnp.sum(positive + negative, axis=-1)


def binary_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Binary cross-entropy of each class, averaged over classes, as in DeiT-III (2204.07118).

    Every class in a mixed image is wholly there: targets above 0 count as 1.
    """
    return sigmoid_cross_entropy(logits, jnp.float32(targets > 0)) / logits.shape[-1]


LOSSES = {
    "softmax": softmax_cross_entropy,
    "sigmoid": sigmoid_cross_entropy,
    "binary": binary_cross_entropy,
}


def make_targets(labels: jax.Array, num_classes: int, smoothing: float = 0.0) -> jax.Array:
    """Targets of a loss, [B, K] float32.

    Args:
      labels: int [B], or the targets themselves, [B, K]: mixed, or several classes an image.
      num_classes: K.
      smoothing: the share of the target that is spread evenly over all classes.
    """
    targets = labels if labels.ndim == 2 else jax.nn.one_hot(labels, num_classes)
    return (1 - smoothing) * targets.astype(jnp.float32) + smoothing / num_classes
