"""The command measures the loop, the step and the forward pass of a tiny run, on one device each."""

import json
import types

import pytest

from tests.shared_programs import shared_programs  # noqa: F401
from tests.stages import config_with
from vit_jax.benchmark import __main__ as command
from vit_jax.benchmark import step as step_lib
from vit_jax.benchmark.__main__ import main
from vit_jax.benchmark.inference import config_for
from vit_jax.benchmark.speed import Timing, repeat
from vit_jax.config import model_options
from vit_jax.errors import ConfigError

pytestmark = pytest.mark.usefixtures("shared_programs")
RUN = ("--config=tests/tiny.py", "--config.mesh.data=8", "--seconds=0.05", "--repeats=3")


def measure(capsys, what, *arguments):
    assert main((what, *RUN, "--json", *arguments)) == 0
    printed = capsys.readouterr()
    assert "Measuring for about" in printed.err
    return json.loads(printed.out)


def check(found, what):
    assert found["what"] == what
    assert len(found["repeats"]) == 3
    lowest, highest = found["images_per_second_range"]
    assert 0 < lowest <= found["images_per_second"] <= highest
    assert found["first_step_seconds"] > found["program"]["compile_seconds"] > 0
    assert found["peak_memory_bytes"] > 2**20
    assert found["program"]["temporary_bytes"] > 0
    assert (found["devices"], found["mfu"]) == (8, None)


@pytest.mark.parametrize("data", ["synthetic", "real"])
def test_the_step_and_the_loop_are_of_one_program(capsys, data, monkeypatch):
    images, first_batch = [], step_lib.first_batch
    monkeypatch.setattr(
        step_lib,
        "repeat",
        lambda run, count, timing: images.append(count) or repeat(run, count, timing),
    )
    monkeypatch.setattr(
        step_lib, "first_batch", lambda made, kind: images.append(kind) or first_batch(made, kind)
    )
    step = measure(capsys, "step", f"--data={data}")
    loop = measure(capsys, "train", f"--data={data}")
    check(step, "step")
    check(loop, "train")
    assert images == [data, 32]
    assert step["program"]["temporary_bytes"] == loop["program"]["temporary_bytes"]
    assert step["flops_per_image"] == loop["flops_per_image"]
    assert loop["data"] == data
    assert 0 <= loop["data_wait"] < 1


def test_the_loop_logs_as_the_config_says(capsys):
    found = measure(capsys, "train", "--data=synthetic", "--config.log_every_steps=4")
    check(found, "train")


def test_inference_by_size_with_its_plots(capsys, tmp_path):
    sizes = ("--sizes=8,16", "--memory_gib=0.0003", f"--plots={tmp_path}")
    found = measure(capsys, "eval", *sizes)
    assert found[0]["batch_size"] == 32 > found[1]["batch_size"], "the config's, and what fits"
    for one in found:
        check(one, "eval")
        assert one["largest_batch"] % 8 == 0
    assert [one["image_size"] for one in found] == [[8, 8], [16, 16]]
    assert found[0]["largest_batch"] > found[1]["largest_batch"]
    for one in found:
        assert one["batch_size"] == min(32, one["largest_batch"])
        size = one["image_size"][0]
        macs = model_options(config_with(**{"model.image_size": size}), 10).macs()
        assert one["flops_per_image"] == 2 * macs
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        f"{n}.{e}" for n in ("inference_speed", "largest_batch") for e in ("png", "svg")
    }


def test_another_model_keeps_only_what_all_models_share():
    keys = {"model.dtype": "bfloat16", "model.matmul_precision": "highest"}
    config = config_with(**keys, **{"model.dropout_rate": 0.1})
    other = config_for(config, "BiT-R50x1", 64)
    options = model_options(other, 10)
    assert (options.dtype, options.image_size, options.channels) == ("bfloat16", (64, 64), 1)
    assert other.model.name == "BiT-R50x1"
    assert (options.matmul_precision, options.num_classes) == ("highest", 10)
    assert config_for(config, "", 16).model.image_size == 16
    assert config_for(config, "", 0).model == config.model


def test_inference_on_the_config_s_images(capsys):
    (found,) = measure(capsys, "eval", "--data=real")
    assert found["largest_batch"] is None
    check(found, "eval")


def test_flags_say_what_is_measured_for_how_long(monkeypatch, tmp_path):
    config = config_with()
    defaults = {"train": "real", "step": "synthetic", "eval": "synthetic", "input": "real"}
    for what, data in defaults.items():
        flags, _ = command.parse_flags([what, "--config=tests/tiny.py"])
        assert (flags.data, flags.seconds, flags.repeats) == (data, 20, 5)
    given = []
    monkeypatch.setattr(command, "measure_inference", lambda *asked: given.append(asked))
    monkeypatch.setattr(command, "memory_capacity_bytes", lambda device: 7)
    words = ["eval", "--config=tests/tiny.py", "--seconds=3", "--repeats=2", "--data=real"]
    flags, _ = command.parse_flags(
        [*words, "--models=ViT-Ti/2,BiT-R50x1", "--sizes=8,16", "--memory_gib=0.5"]
    )
    command.measure_eval(config, flags)
    assert [(one.model.name, one.model.image_size, *rest) for one, *rest in given] == [
        (name, size, "real", Timing(3, 2), 2**29)
        for name in ("ViT-Ti/2", "BiT-R50x1")
        for size in (8, 16)
    ]
    given.clear()
    flags, _ = command.parse_flags(["eval", "--config=tests/tiny.py"])
    command.measure_eval(config, flags)
    assert given == [(config, "synthetic", Timing(20, 5), 7)]


def test_what_is_printed_is_text_or_one_document(monkeypatch, capsys):
    def measured(name):
        return types.SimpleNamespace(describe=lambda: f"{name}.", as_json=lambda: {"what": name})

    monkeypatch.setattr(command, "measure_step", lambda *given: measured("a step"))
    monkeypatch.setattr(command, "measure_loop", lambda *given: measured("a loop"))
    monkeypatch.setattr(command, "measure_inference", lambda c, *_: measured(c.model.image_size))
    sizes = ("--sizes=8,16", "--memory_gib=1")
    for what, flags, text, document in (
        ("step", (), "a step.\n", {"what": "a step"}),
        ("train", (), "a loop.\n", {"what": "a loop"}),
        ("eval", sizes, "8.\n\n16.\n", [{"what": 8}, {"what": 16}]),
    ):
        assert main((what, *RUN, *flags)) == 0
        assert capsys.readouterr().out == text
        assert main((what, *RUN, *flags, "--json")) == 0
        assert json.loads(capsys.readouterr().out) == document


def test_synthetic_data_need_not_be_there(monkeypatch):
    required = []

    def open_dataset(config, *, required, asked=required):
        asked.append(required)
        raise ConfigError("enough")

    monkeypatch.setattr(step_lib, "open_dataset", open_dataset)
    for data in ("synthetic", "real"):
        with pytest.raises(ConfigError, match="enough"):
            step_lib.open_experiment(config_with(), data)
    assert required == [False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("step", "--models=ViT-B/16"), "--models: only eval has it"),
        (("step", "--memory_gib=1"), "--memory_gib: only eval has it, not step"),
        (("input", "--sizes=8"), "--sizes: only eval has it, not input"),
        (("train", "--plots=DIR"), "--plots: only eval has it, not train"),
        (("input", "--data=synthetic"), "input measures how real data"),
        (("eval", "--sizes=8,big"), "whole numbers of pixels"),
        (("eval", "--models=ViT-B/16", "--sizes=100"), "not divisible by model.patch_size"),
        (("eval", "--models=ViT-Z/16"), "ViT-Z/16"),
        (("train", "--config.batch_size=12"), "not divisible"),
        (("eval", "--memory_gib=1e-6"), "One image on each device needs 0.00 GiB of memory"),
        (("output",), "invalid choice"),
    ],
)
def test_mistakes_are_named(capsys, arguments, words):
    what, *rest = arguments
    assert main((what, *RUN, *rest)) == 2
    assert words in capsys.readouterr().err
