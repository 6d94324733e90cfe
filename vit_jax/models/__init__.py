"""Architectures: one file a family, named in the registry."""

from vit_jax.models.registry import (
    abstract_model,
    build_model,
    count_parameters,
    create_model,
    list_models,
    model_options,
)

__all__ = [
    "abstract_model",
    "build_model",
    "count_parameters",
    "create_model",
    "list_models",
    "model_options",
]
