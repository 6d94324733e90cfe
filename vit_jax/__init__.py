"""Vision Transformers in JAX: pre-training and fine-tuning as in arXiv 2010.11929."""

from vit_jax.models.registry import create_model, list_models

__all__ = ["create_model", "list_models"]
__version__ = "0.1.0"
