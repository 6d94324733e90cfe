"""One mechanism turns what happens to any command into a message and an exit code."""

import subprocess
import sys

import pytest

from vit_jax import command_line
from vit_jax.command_line import run_command
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
