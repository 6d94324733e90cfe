"""One mechanism turns what happens to any command into a message and an exit code."""

import argparse
import subprocess
import sys

import jax
import pytest

from vit_jax import command_line
from vit_jax.command_line import (
    Parser,
    add_averaging_flags,
    add_image_limit,
    add_model_flags,
    add_process_flags,
    at_least_one,
    load_by_flags,
    named,
    parse_options,
    parse_with_config,
    pixels,
    positive,
    run_command,
    share,
)
from vit_jax.errors import ConfigError, NonFiniteLossError, PreemptedError


def ending_with(error):
    def command(arguments):
        raise error

    return run_command(command, [])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("config.seed=-1: no."), 2, "config.seed=-1: no."),
        (NonFiniteLossError("The loss is nan."), 3, "The loss is nan."),
        (PreemptedError("Stopped after step 3."), 75, "Stopped after step 3."),
        (OSError(28, "No space left on device"), 2, "No space left on device. Mend that"),
        (BrokenPipeError(32, "Broken pipe"), 2, "Broken pipe. Mend that"),  # Of a worker, say.
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_ends_a_command_has_a_message_and_a_code(error, code, message, capsys):
    assert ending_with(error) == code
    written = capsys.readouterr().err
    assert message in written
    assert written.startswith("W" if code == 75 else "E" if message else "")
    assert written.count("\n") == bool(message)


def test_what_nobody_expects_keeps_its_trace():
    with pytest.raises(ZeroDivisionError):
        ending_with(ZeroDivisionError())


def test_a_failure_of_one_process_is_told_the_others(monkeypatch, capsys):
    """Alone, it is a bug, with its trace."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="peer is gone"):
        ending_with(jax.errors.JaxRuntimeError("peer is gone"))
    monkeypatch.setattr(command_line.jax, "process_count", lambda: 2)
    assert ending_with(jax.errors.JaxRuntimeError("peer is gone")) == 1
    assert "peer is gone. Unless that says why, another process died" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_discarded(monkeypatch):
    """Python would try again when it ends, and then end with another code."""
    replaced, error = [], OSError(28, "No space left on device")

    def flush():
        raise error

    monkeypatch.setattr(command_line.sys.stdout, "flush", flush)
    monkeypatch.setattr(command_line.os, "dup2", lambda *given: replaced.append(given[1]))
    assert command_line.discard_output()
    assert replaced == [1]
    monkeypatch.setattr(command_line.sys.stdout, "flush", lambda: None)
    assert not command_line.discard_output()
    assert replaced == [1]


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_says_how_it_ended(code):
    assert run_command(lambda arguments: code, []) == code


@pytest.mark.parametrize("error", [None, ConfigError("no")])
def test_every_command_leaves_the_other_processes_with_its_code(error, monkeypatch):
    codes = []
    monkeypatch.setattr(command_line.distributed, "shutdown", codes.append)
    code = ending_with(error) if error else run_command(lambda arguments: 0, [])
    assert codes == [code]


def test_a_reader_that_has_enough_is_no_error():
    program = (
        "import sys; from vit_jax.command_line import run_command;"
        "sys.exit(run_command(lambda arguments: print('line\\n' * 10**5) or 0, []))"
    )
    command = f'{sys.executable} -c "{program}" | head -1; exit ${{PIPESTATUS[0]}}'
    process = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=300, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "line\n", "")


@pytest.mark.parametrize(
    ("read", "accepted", "refused"),
    [
        (at_least_one, {"1": 1, "1000000000000": 10**12}, ("0", "-1", "1.0", "x", "1000000000001")),
        (pixels, {"1": 1, "16384": 16384}, ("0", "16385")),
        (positive, {"1e-9": 1e-9, "3": 3.0}, ("0", "-1", "inf", "nan", "x")),
        (share, {"0": 0.0, "1": 1.0, "0.25": 0.25}, ("-0.1", "1.1", "nan", "x")),
    ],
)
def test_numbers_at_their_limits(read, accepted, refused):
    assert {text: read(text) for text in accepted} == accepted
    for text in refused:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not a"):
            read(text)


def test_a_number_that_is_too_large_is_told_the_limit():
    with pytest.raises(argparse.ArgumentTypeError, match=r"at least 1 and at most 16,384$"):
        pixels("16385")
    with pytest.raises(argparse.ArgumentTypeError, match=r"at least 1$"):
        pixels("0")


def test_names_of_files_of_one_format(monkeypatch):
    monkeypatch.setenv("FOLDER", "/data")
    check = named(".json")
    assert [check("$FOLDER/a.JSON"), check("a")] == ["/data/a.JSON", "a"]
    with pytest.raises(argparse.ArgumentTypeError, match=r"'a.csv' is no name .*: NAME\.json"):
        check("a.csv")


def flags_of(add, *arguments):
    parser = Parser("vit_jax.some", "Does something.")
    add(parser)
    return vars(parser.parse_args(arguments))


def test_flags_and_their_defaults():
    model = {"checkpoint": "latest", "ema": False, "option": []}
    assert flags_of(add_model_flags) == model
    averaging = {"resize": None, "crops": 1, "flips": False, "ensemble": False}
    assert flags_of(add_averaging_flags) == {**averaging, "average": "probabilities"}
    processes = {"coordinator_address": None, "num_processes": None, "process_id": None}
    assert flags_of(add_process_flags) == {**processes, "coordinator_timeout": 300}
    assert flags_of(add_image_limit) == {"max_image_gib": None}
    given = flags_of(add_model_flags, "--option=a=1", "--ema", "--option=b=2", "--checkpoint=best")
    assert given == {"checkpoint": "best", "ema": True, "option": ["a=1", "b=2"]}
    given = ("--resize=9", "--crops=5", "--flips", "--ensemble", "--average=logits")
    expected = {"resize": 9, "crops": 5, "flips": True, "ensemble": True, "average": "logits"}
    assert flags_of(add_averaging_flags, *given) == expected
    with pytest.raises(ConfigError, match="--crop"):  # No part of a name is its name.
        flags_of(add_averaging_flags, "--crop=5")


@pytest.mark.parametrize(
    ("add", "argument"),
    [
        (add_image_limit, "--max_image_gib=0"),
        (add_averaging_flags, "--resize=0"),
        (add_averaging_flags, "--crops=2"),
        (add_averaging_flags, "--average=mean"),
        (add_process_flags, "--coordinator_timeout=0"),
        (add_process_flags, "--num_processes=x"),
        (add_process_flags, "--process_id=1.5"),
    ],
)
def test_values_that_a_flag_cannot_have(add, argument):
    flag, _, value = argument.partition("=")
    with pytest.raises(ConfigError, match=rf"argument {flag}: .*{value}.*; --help lists the flags"):
        flags_of(add, argument)


def test_overrides_are_told_from_flags():
    arguments = ["--config=FILE", "--config.a.b=x=y", "--ema", "--config.c="]
    parser = Parser("vit_jax.some", "Does something.")
    parser.add_argument("--ema", action="store_true")
    flags, overrides = parse_with_config(parser, arguments)
    assert (flags.config, flags.ema, overrides) == ("FILE", True, ["a.b=x=y", "c="])
    with pytest.raises(ConfigError, match=r"--config\.a: expected --config\.KEY=VALUE"):
        parse_with_config(Parser("vit_jax.some", ""), ["--config=FILE", "--config.a"])


def test_options_of_a_model():
    pairs = ["image_size=(64,32)", "gelu=erf", "class_token=TRUE", "name=a=b", "num_heads=3"]
    assert parse_options(pairs) == {
        **{"image_size": (64, 32), "gelu": "erf", "class_token": True, "name": "a=b"},
        "num_heads": 3,
    }
    for pair in ("=3", "gelu"):
        with pytest.raises(ConfigError, match=f"--option={pair}: write KEY=VALUE"):
            parse_options([pair])


def test_what_is_loaded_by_the_flags(monkeypatch):
    """A step that was found, before the flag; averages if the flags or the checkpoint ask for them."""
    calls = []
    monkeypatch.setattr(command_line, "is_workdir", lambda path: path == "RUN")
    monkeypatch.setattr(command_line, "load_model", lambda *a, **k: calls.append((a, k)))

    def load(path, *arguments, step=None, ema=False):
        parser = Parser("vit_jax.some", "")
        add_model_flags(parser)
        load_by_flags(path, parser.parse_args(arguments), step, ema=ema)
        return calls.pop()

    assert load("FILE", "--option=num_heads=3") == (
        ("FILE",),
        {"checkpoint": "latest", "ema": False, "num_heads": 3},
    )
    best = ("--checkpoint=best",)
    assert load("RUN", *best)[1] == {"checkpoint": "best", "ema": False}
    assert load("RUN", *best, step=7)[1] == {"checkpoint": 7, "ema": False}
    assert load("RUN", step=7, ema=True)[1] == {"checkpoint": 7, "ema": True}
    assert load("RUN", "--ema")[1] == {"checkpoint": "latest", "ema": True}
    for flag in ("--ema", "--checkpoint=3"):
        with pytest.raises(ConfigError, match="choose from a run's workdir; FILE is none"):
            load("FILE", flag)
    for key in ("path", "checkpoint", "ema", "weights", "pretrained"):
        with pytest.raises(ConfigError, match=f"'{key}' is no option of a model"):
            load("FILE", f"--option={key}=1")


def test_who_the_processes_are(monkeypatch):
    given, logged = [], []
    monkeypatch.setattr(command_line.distributed, "initialize", lambda *a: given.append(a))
    monkeypatch.setattr(command_line.jax.distributed, "is_initialized", lambda: bool(given[1:]))
    monkeypatch.setattr(command_line.jax, "process_index", lambda: 5)
    monkeypatch.setattr(command_line, "setup_logging", logged.append)
    parser = Parser("vit_jax.some", "")
    add_process_flags(parser)
    arguments = ["--coordinator_address=host:1", "--num_processes=9", "--process_id=5"]
    for _ in range(2):
        command_line.connect(parser.parse_args([*arguments, "--coordinator_timeout=7"]))
    assert given == [(command_line.distributed.Cluster("host:1", 9, 5), 7)] * 2
    assert logged == [5]  # Where there are several.
