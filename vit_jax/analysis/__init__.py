"""What a model looks at and what it has learned: the paper's figures as arrays, without files.

`attention` has rollout (Figures 6 and 14) and mean distance (Figures 7 and 11), `embeddings` what
positions and patches became (Figures 7 and 10), `tokens` what lies between: similarity over depth,
features as colours, relevance for a class, neighbours. Images are as the model takes them.
"""

from vit_jax.analysis.attention import attention_distance, attention_maps, attention_rollout
from vit_jax.analysis.embeddings import embedding_filters, position_similarity
from vit_jax.analysis.tokens import (
    class_relevance,
    nearest_neighbors,
    patch_colors,
    principal_components,
    token_similarity,
)

__all__ = [
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "class_relevance",
    "embedding_filters",
    "nearest_neighbors",
    "patch_colors",
    "position_similarity",
    "principal_components",
    "token_similarity",
]
