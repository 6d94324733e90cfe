"""Losses of one example: (logits [B, K] float32, targets [B, K] summing to 1) -> [B] float32."""

import jax
import jax.numpy as jnp


def softmax_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of the softmax with the targets; fine-tuning's loss."""
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)


def sigmoid_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Binary cross-entropy of each class, summed over classes; pre-training's loss."""
    positive = targets * jax.nn.log_sigmoid(logits)
    negative = (1 - targets) * jax.nn.log_sigmoid(-logits)
    return -jnp.sum(positive + negative, axis=-1)


LOSSES = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}
