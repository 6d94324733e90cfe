"""Vision Transformers in JAX: pre-training and fine-tuning as in arXiv 2010.11929."""

__version__ = "0.1.0"
