"""A run's architecture, where its config names none."""

import pytest

from tests.stages import random_model
from vit_jax import train
from vit_jax.benchmark import input, step
from vit_jax.config import default_config, model_options
from vit_jax.errors import CheckpointError, ConfigError
from vit_jax.hub import NotCachedError
from vit_jax.model_file import ModelFile, write_model_file
from vit_jax.training import architecture, planning
from vit_jax.training.architecture import with_architecture
from vit_jax.weights.saving import save_model

# Of the run, or of its head.
OF_THE_RUN = {
    **{"dropout_rate": 0.5, "attention_dropout_rate": 0.4, "patch_dropout_rate": 0.3},
    **{"stochastic_depth_rate": 0.2, "stochastic_depth_schedule": "constant", "dropout_bits": 32},
    **{"position_std": 0.5, "kernel_std": 0.3, "representation_size": 9, "head_bias": -4.0},
    **{"dtype": "bfloat16", "matmul_precision": "highest", "attention": "joint"},
    **{"remat": "full", "scan_unroll": 3, "num_classes": 7, "head_norm": "batch"},
}
# Of the function and of its size.
OPTIONS = {
    **{"gelu": "erf", "pooling": "average", "layer_scale": 0.1, "width": 48, "depth": 2},
    **{"image_size": (32, 48), "channels": 1, "num_registers": 2},
    **OF_THE_RUN,
}


def config_with(**values):
    config = default_config()
    config.update_from_flattened_dict(values)
    return config


@pytest.fixture
def workdir(tmp_path):
    """A run's, as far as it takes to describe its model."""
    (tmp_path / "checkpoints").mkdir()
    write_model_file(tmp_path, ModelFile("ViT-S/16", OPTIONS))
    return str(tmp_path)


def test_a_run_continues_the_model_of_its_weights(workdir):
    config = with_architecture(config_with(init=workdir))
    options = model_options(config, 3)
    for option, value in OPTIONS.items():
        assert (getattr(options, option) == value) == (option not in OF_THE_RUN), option
    assert (config.model.name, options.num_heads, options.mlp_width) == ("ViT-S/16", 6, 1536)
    assert config.model.num_heads is None  # The name says it.


def test_what_the_config_sets_wins(workdir):
    values = {"model.image_size": 64, "model.gelu": "tanh", "model.dropout_rate": 0.1}
    options = model_options(with_architecture(config_with(init=workdir, **values)), 3)
    assert (options.image_size, options.gelu, options.dropout_rate) == ((64, 64), "tanh", 0.1)
    assert options.layer_scale == 0.1


@pytest.mark.parametrize(
    ("name", "ours", "size"),
    [
        (None, "ViT-B/16", 224),
        ("BiT-R50x1", "BiT-R50x1", 224),
        ("vit_tiny_patch16_384", "ViT-Ti/16", 384),
    ],
)
def test_a_name_says_the_rest(name, ours, size):
    config = with_architecture(config_with(**{"model.name": name}))
    assert (config.model.name, config.model.image_size) == (ours, size)
    assert config.model.width is None


def test_a_named_model_asks_nothing_of_the_weights(workdir):
    config = with_architecture(config_with(init="absent.npz", **{"model.name": "ViT-S/16"}))
    assert (config.model.image_size, config.model.gelu) == (224, None)


def test_of_a_file_that_is_no_run(tmp_path):
    model = random_model("ViT-Ti/8", width=192, depth=1, image_size=16, gelu="erf", num_classes=2)
    save_model(model, tmp_path / "model.safetensors")
    config = with_architecture(config_with(init=str(tmp_path / "model.safetensors")))
    assert (config.model.name, config.model.depth, config.model.gelu) == ("ViT-Ti/8", 1, "erf")
    assert config.model.image_size == (16, 16)


def test_a_run_without_a_description(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.json is missing"):
        with_architecture(config_with(init=str(tmp_path)))


def test_what_it_takes_is_said_and_what_is_not_here_is_named(workdir, monkeypatch, caplog):
    with caplog.at_level("INFO", logger="vit_jax"):
        with_architecture(config_with(init=workdir))
    assert caplog.messages == [f"config.model is that of config.init={workdir}: ViT-S/16."]

    def missing(path, *given, cached_only, **options):
        assert (path, cached_only) == ("hf:a/b", True)
        raise NotCachedError("hf:a/b is not in the cache.")

    monkeypatch.setattr(architecture, "read_description", missing)
    monkeypatch.setattr(architecture, "local_path", missing)
    here = r"is not here: hf:a/b is not in the cache\. "
    with pytest.raises(ConfigError, match=rf"config\.init names {here}Set config\.model\.name, or"):
        with_architecture(config_with(init="hf:a/b"), cached_only=True)
    with pytest.raises(ConfigError, match=rf"config\.init_teacher names {here}Load it once with"):
        with_architecture(config_with(init_teacher="hf:a/b"), cached_only=True)
    given = {"init_teacher": "hf:a/b", "model.name": "ViT-S/16"}
    assert with_architecture(config_with(**given)).init_teacher == "hf:a/b"
    monkeypatch.setattr(architecture, "local_path", lambda path, cached_only: "cache/teacher")
    found = with_architecture(config_with(**given), cached_only=True)
    assert found.init_teacher == "cache/teacher"


def test_the_weights_are_described_with_what_the_config_knows(monkeypatch):
    """And an image that is not square keeps both sides."""
    asked = []

    def describe(path, known, grid, *, cached_only):
        asked.append((path, known, grid, cached_only))
        return ModelFile("ViT-S/16", {"image_size": (32, 48), "num_heads": 6})

    monkeypatch.setattr(architecture, "read_description", describe)
    values = {"model.num_heads": 3, "model.patch_size": None}
    config = with_architecture(config_with(init="a.npz", **values))
    assert asked == [("a.npz", {"num_heads": 3}, None, False)]
    assert (config.model.num_heads, config.model.image_size) == (3, (32, 48))


class Asked(Exception):
    """Raised in place of a look at `config.init`, so that nothing else need run."""


@pytest.mark.parametrize(
    ("call", "cached_only"),
    [
        (lambda config: with_architecture(config), False),
        (lambda config: planning.make_plan(config, None), True),
        (lambda config: planning.measure_supply(config), True),
        (lambda config: step.open_experiment(config, "synthetic"), True),
        (lambda config: input.measure_input(config, None), True),
        (lambda config: train.run(config, "", dry_run=True), True),
    ],
)
def test_what_only_looks_asks_nothing_of_the_network(monkeypatch, call, cached_only):
    def asked(path, known, grid, **options):
        assert (path, grid) == ("hf:a/b", (2, 3))
        raise Asked(options)

    monkeypatch.setattr(architecture, "read_description", asked)
    config = config_with(init="hf:a/b", init_source_grid=(2, 3))
    with pytest.raises(Asked) as error:
        call(config)
    assert error.value.args == ({"cached_only": cached_only},)
