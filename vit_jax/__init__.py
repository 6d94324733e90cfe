"""Vision Transformers in JAX: pre-training and fine-tuning as in arXiv 2010.11929."""

from vit_jax.models.registry import create_model, list_models
from vit_jax.weights.loading import load_model
from vit_jax.weights.pretrained import list_pretrained
from vit_jax.weights.saving import save_model

__all__ = ["create_model", "list_models", "list_pretrained", "load_model", "save_model"]
__version__ = "0.1.0"
