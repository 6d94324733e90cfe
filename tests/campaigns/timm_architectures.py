"""Makes `vit_jax/weights/timm_architectures.json`: timm's names and the arguments behind them.

    PYTHON_WITH_TIMM -m tests.campaigns.timm_architectures > vit_jax/weights/timm_architectures.json

Each name is called as timm's users do, and the arguments with which it would build its model are
written down, where they differ from the class's defaults. Nothing is built.
"""

import functools
import inspect
import json
from typing import Any

from tests.campaigns.timm_names import MODULES

# Said by tensors, or by the rest of a file's config.json; or nothing to inference.
LEFT_OUT = (
    *("img_size", "num_classes", "in_chans", "depth", "num_blocks", "layers", "args"),
    *("dynamic_img_size", "mlp_ratio"),
)


class Found(BaseException):
    """The arguments of a model that was about to be built."""


def main() -> None:
    """Prints the table, one name a line."""
    print(rendered(*table()))


def rendered(version: str, architectures: dict, renamed: dict) -> str:
    """The file's text."""
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in architectures.items()
    )
    return (
        f'{{\n  "timm": {json.dumps(version)},\n  "architectures": {{\n{lines}\n  }},\n'
        f'  "renamed": {json.dumps(renamed, indent=4)[:-1]}  }}\n}}'
    )


def table() -> tuple[str, dict[str, Any], dict[str, str]]:
    """timm's version, the arguments by name, and the names that have a new one."""
    import timm
    from timm.models import _registry

    architectures = {
        name: arguments_of(name, module)
        for module in MODULES
        for name in timm.list_models(module=module)
    }
    renamed = {
        old: new.split(".")[0]
        for old, new in _registry._deprecated_models.items()
        if new and new.split(".")[0] in architectures
    }
    return timm.__version__, architectures, renamed


def arguments_of(name: str, module: str) -> dict[str, Any]:
    """The class and the arguments that differ from its defaults."""
    import timm
    from timm.models import beit, deit, eva, mlp_mixer, resnetv2, vision_transformer

    classes = [
        vision_transformer.VisionTransformer,
        deit.VisionTransformerDistilled,
        eva.Eva,
        beit.Beit,
        mlp_mixer.MlpMixer,
    ]
    if module == "resnetv2":  # Elsewhere it is a stem.
        classes.append(resnetv2.ResNetV2)
    originals = {cls: cls.__init__ for cls in classes}
    for cls in classes:
        cls.__init__ = recording(cls)
    try:
        timm.create_model(name)
    except Found as found:
        return found.args[0]
    finally:
        for cls, original in originals.items():
            cls.__init__ = original
    raise AssertionError(f"{name} is built by another class.")


def recording(cls: type):
    """A constructor that raises Found."""
    signature = inspect.signature(cls.__init__)
    defaults = {name: word(p.default) for name, p in signature.parameters.items()}

    def init(self, *args: Any, **kwargs: Any) -> None:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        del given["self"]
        arguments = {key: word(value) for key, value in given.items() if key not in LEFT_OUT}
        raise Found(
            {
                "class": type(self).__name__,
                **{k: v for k, v in arguments.items() if k not in defaults or v != defaults[k]},
            }
        )

    return init


def word(value: Any) -> Any:
    """An argument as JSON: functions, classes and modules by name, with what they are given."""
    import torch

    if isinstance(value, functools.partial):
        return {"": word(value.func), **{k: word(v) for k, v in value.keywords.items()}}
    if isinstance(value, type) or inspect.isfunction(value):
        return value.__name__
    if isinstance(value, torch.nn.Module):
        return type(value).__name__
    if isinstance(value, tuple | list):
        return [word(part) for part in value]
    return value


if __name__ == "__main__":
    main()
