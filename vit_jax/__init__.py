"""Vision Transformers in JAX: pre-training and fine-tuning as in arXiv 2010.11929."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.data.sources.python import as_source
    from vit_jax.models.registry import create_model, list_models
    from vit_jax.weights.loading import load_model
    from vit_jax.weights.pretrained import list_pretrained
    from vit_jax.weights.saving import save_model


__all__ = [
    "as_source",
    "create_model",
    "list_models",
    "list_pretrained",
    "load_model",
    "save_model",
]
__version__ = "0.1.0"

# Imported when they are asked for: JAX takes seconds, in which a command should hear signals.
_HOMES = {
    "as_source": "vit_jax.data.sources.python",
    "create_model": "vit_jax.models.registry",
    "list_models": "vit_jax.models.registry",
    "list_pretrained": "vit_jax.weights.pretrained",
    "load_model": "vit_jax.weights.loading",
    "save_model": "vit_jax.weights.saving",
}


def __getattr__(name: str) -> Any:
    """A public name, on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """The public names too, asked for or not."""
    return sorted({*globals(), *__all__})
