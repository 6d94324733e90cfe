"""Every preset starts: its dry run as it is, and one update at a small size on fake data.

Compiling takes most of the time. So presets whose small updates are one and the same program share
one, and outside the slow tests a few kinds of update are run, while others are traced only.
"""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.preset_texts import PRESETS, load
from tests.stages import Setup, mesh_of
from vit_jax import train
from vit_jax.config import flatten, model_options
from vit_jax.durations import DURATIONS, UNITS
from vit_jax.models.registry import find_architecture

ALL = [(name, arguments) for name, every in PRESETS.items() for arguments in dict.fromkeys(every)]
TRACED = [  # One of each kind; configs that other tests run are not here.
    *(("vit", "b16,imagenet2012"), ("bit", "r50x1,imagenet2012,sgd")),
    *(("bit", "r50x1,cifar10,hyperrule"), ("augreg", "b16,imagenet21k,,wd0.1+drop")),
    *(("plain_vit", "90"), ("deit", "b16"), ("deit3", "b16,400"), ("deit3", "b16,400,finetune")),
    *(("deit3", "b16,90"), ("scaling_vit", "g14"), ("sam", "b16")),
    *(("finetune", "b16,imagenet2012"), ("finetune", "b16,cifar10"), ("vtab", "dtd,l16")),
    *(("mixer", "300"), ("deit3", "b16,400,finetune384")),
]
RUN = [("deit3", "b16,400")]
SMALL = {  # What is set, where a model has it.
    **{"width": 16, "depth": 1, "num_heads": 2, "mlp_width": 16, "token_mlp_width": 16},
    **{"representation_size": 16, "width_factor": 1},
}


def shrunken(config: ConfigDict) -> ConfigDict:
    """The recipe for a small model, one update of 8 fake images, without weights to start from."""
    config.data.update({"source": "fake", "label": "", "classes": ()})
    config.data.update({"train_split": "train", "num_train_examples": 16, "eval_split": ""})
    config.model.num_classes = 10
    config.init = ""
    config.batch_size = 8
    config.optimizer.sharpness.shares = min(config.optimizer.sharpness.shares, 4)
    config.update({f"{duration}_{unit}": 0 for duration in DURATIONS for unit in UNITS})
    config.total_steps = 1
    config.model.dtype = "float32"  # bfloat16 takes longer to compile for a CPU.
    options = model_options(config, 10)
    for option, size in SMALL.items():
        if getattr(options, option, 0):
            config.model[option] = size
    for option in ("stage_depths", "stem_depths"):
        if hasattr(options, option):
            config.model[option] = (1,) * len(getattr(options, option))
    config.model.image_size = 64
    if hasattr(options, "patch_size") and not hasattr(options, "stem_depths"):
        config.model.patch_size, config.model.image_size = 4, 8
    return config


def program(preset: tuple[str, str]) -> str:
    """What a preset's small update depends on, but for the values of its real numbers."""
    config = shrunken(load(*preset))
    options = dataclasses.asdict(model_options(config, 10))
    values = {k: v for k, v in flatten(config).items() if not k.startswith(("model.", "sweep."))}
    of_the_run = ("note", "data.num_classes", "seed")
    values = {key: value for key, value in values.items() if key not in of_the_run} | options
    real = {key: bool(value) for key, value in values.items() if isinstance(value, float)}
    return repr((find_architecture(config.model.name).module, values | real))


def fast(presets: list, chosen: list) -> list:
    """Parameters of a test, all but the chosen ones marked as slow."""
    return [
        pytest.param(preset, id=":".join(preset), marks=[pytest.mark.slow] * (preset not in chosen))
        for preset in presets
    ]


def one_of_each_program() -> list:
    """`RUN`, and a preset of each program that is not among theirs."""
    return list({program(preset): preset for preset in [*reversed(ALL), *RUN]}.values())


def test_the_chosen_are_presets():
    assert set(RUN) <= set(TRACED) <= set(ALL)


@pytest.mark.parametrize("preset", fast(ALL, TRACED))
def test_dry_run_and_trace(preset):
    config = load(*preset)
    config.init = ""  # The weights are not here.
    if config.data.source in ("digits", "folder:photos") or config.data.source.startswith("idx:"):
        config.data.update({"source": "fake", "classes": (), "train_split": "train"})
        config.model.num_classes = 10
        config.batch_size = -(-config.batch_size // 8) * 8  # For eight devices.
    assert train.run(config, "", dry_run=True) == {}

    setup = Setup(shrunken(load(*preset)), mesh_of(1))
    with contextlib.closing(setup.batches()) as batches:
        state, metrics = jax.eval_shape(setup.step, setup.abstract, next(batches))
    assert jax.tree.structure(state) == jax.tree.structure(setup.abstract)
    assert metrics["loss"].shape == ()


def pytest_generate_tests(metafunc):
    """All of `one_of_each_program`, which takes seconds, only where slow tests run."""
    if "program_preset" in metafunc.fixturenames:
        without_slow = metafunc.config.option.markexpr == "not slow"
        presets = list(RUN) if without_slow else one_of_each_program()
        metafunc.parametrize("program_preset", fast(presets, RUN))


def test_one_update(program_preset):
    setup = Setup(shrunken(load(*program_preset)), mesh_of(1))
    losses, _, state = setup.run()
    assert np.isfinite(losses).all()
    assert state.step == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert np.any(state.params["head"]["kernel"])  # Which is zero at first.
