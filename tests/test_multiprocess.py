"""Several real processes over loopback do what one does: same batches, same losses, one end."""

import contextlib
import json
import re
import shutil
import signal
import sys
import time

import numpy as np
import pytest

from tests.runs import connected, read_metrics, start, start_processes
from vit_jax import main
from vit_jax.checkpoint import Checkpoints

CONFIG = (
    "--config=tests/tiny.py",
    "--config.model.dropout_rate=0.1",
    "--config.ema_decay=0.9",
    "--config.checkpoint_every_steps=4",
    "--config.keep_checkpoints=10",
)
ENDLESS = (*CONFIG, "--config.total_steps=1000000", "--config.checkpoint_every_steps=0")
FSDP = "--config.mesh.fsdp=2"
TENSOR = ("--config.mesh.data=1", "--config.mesh.tensor=2")
TOLERANCE = 1e-5
DEATH_SECONDS = 90  # Within which the others end when a process died.


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    """One compilation cache for all processes here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process on eight devices; checkpoints of steps 4, 8 and 10."""
    workdir = tmp_path_factory.mktemp("alone")
    assert main.main((*CONFIG, f"--workdir={workdir}")) == 0
    return workdir


def finish(processes, timeout=300):
    """The exit codes and outputs; leaves none behind."""
    deadline = time.monotonic() + timeout
    try:
        outputs = [p.communicate(timeout=max(deadline - time.monotonic(), 0))[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def forget_after(workdir, step):
    """Leaves the workdir as a run killed after the checkpoint of `step` leaves it."""
    for checkpoint in (workdir / "checkpoints").iterdir():
        if int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)


def assert_same_run(workdir, expected):
    records, wanted = read_metrics(workdir), read_metrics(expected)
    assert [r["step"] for r in records] == [r["step"] for r in wanted]
    for key in ("train/loss", "eval/loss", "eval_ema/loss", "eval/accuracy", "eval/count"):
        values, references = ([r[key] for r in rs if key in r] for rs in (records, wanted))
        assert references, key
        np.testing.assert_allclose(values, references, rtol=0, atol=TOLERANCE, err_msg=key)


def wait_for_step(workdir, step, processes):
    while True:
        assert all(process.poll() is None for process in processes), finish(processes)
        with contextlib.suppress(OSError, ValueError, IndexError):
            if read_metrics(workdir)[-1]["step"] >= step:
                return
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("num_processes", "mesh"),
    [
        (2, ()),
        *(
            pytest.param(count, mesh, marks=pytest.mark.slow)
            for count, mesh in ((2, (FSDP,)), (2, TENSOR), (4, ()), (4, (FSDP, *TENSOR[1:])))
        ),
    ],
)
def test_processes_equal_one_process_and_each_resumes_the_other(
    alone, tmp_path, num_processes, mesh
):
    together, resumed = tmp_path / "together", tmp_path / "resumed"
    codes, outputs = finish(start_processes(num_processes, *CONFIG, *mesh, f"--workdir={together}"))
    assert codes == [0] * num_processes, outputs
    assert_same_run(together, alone)
    assert "this run:" in outputs[0]
    assert " I " not in outputs[1], "process 1 reports warnings only"

    forget_after(together, 4)
    assert main.main((*CONFIG, f"--workdir={together}")) == 0
    assert_same_run(together, alone)

    shutil.copytree(alone, resumed)
    forget_after(resumed, 4)
    codes, outputs = finish(start_processes(num_processes, *CONFIG, *mesh, f"--workdir={resumed}"))
    assert codes == [0] * num_processes, outputs
    assert "Resuming after step 4." in outputs[0]
    assert_same_run(resumed, alone)


ORDER = """
import json, sys
import jax
from vit_jax import distributed, sharding
from vit_jax.config_file import load_config
from vit_jax.data.dataset import open_dataset, train_batches
from vit_jax.command_line import connect
from vit_jax.main import parse_flags

flags, overrides = parse_flags(sys.argv[1:], "order", "Prints the examples of four batches.")
connect(flags)
config = load_config(flags.config, overrides)
rows = sharding.batch_sharding(sharding.build_mesh(config.mesh))
batches = train_batches(config, open_dataset(config), rows, start=44, stop=48)
everywhere = jax.jit(lambda x: x, out_shardings=sharding.replicated(rows.mesh))
ids = [everywhere(batch["index"]).addressable_data(0).tolist() for batch in batches]
print("ids:", json.dumps(ids))
distributed.shutdown(0)
"""


def ids_of_batches(num_processes, *arguments):
    """What each process sees of batches 44 to 47, between which an epoch ends."""
    command = (sys.executable, "-c", ORDER, *CONFIG, "--workdir=none", *arguments)
    processes = [
        start(*command, *flags, JAX_NUM_CPU_DEVICES="2") for flags in connected(num_processes)
    ]
    codes, outputs = finish(processes)
    assert not any(codes), outputs
    return [json.loads(re.search(r"^ids: (.*)$", text, re.MULTILINE)[1]) for text in outputs]


@pytest.mark.parametrize("num_processes", [2, pytest.param(4, marks=pytest.mark.slow, id="4")])
def test_every_global_batch_has_the_same_images_in_the_same_order(num_processes):
    (expected,) = ids_of_batches(1)
    spanning = "--config.mesh.data=1", f"--config.mesh.tensor={2 * num_processes}"
    for mesh in ((), spanning):  # Along a tensor axis all processes hold all rows.
        assert ids_of_batches(num_processes, *mesh) == [expected] * num_processes


def stop_one(workdir, num_processes, number, index):
    """Sends a signal to one process of a long run; returns all exit codes and outputs."""
    steps = [record["step"] for record in read_metrics(workdir)] if workdir.exists() else [0]
    processes = start_processes(num_processes, *ENDLESS, f"--workdir={workdir}")
    wait_for_step(workdir, steps[-1] + 2, processes)
    processes[index].send_signal(number)
    return finish(processes, timeout=DEATH_SECONDS)


def check_one_signal(workdir, num_processes, number, index):
    """One process's signal makes all save the same step."""
    codes, outputs = stop_one(workdir, num_processes, number, index)
    assert codes == [75] * num_processes, outputs
    stopped = {re.search(r"Stopped after step (\d+), which is saved", text)[1] for text in outputs}
    checkpoints = Checkpoints(workdir, read_only=True)
    assert {str(checkpoints.latest_step)} == stopped
    checkpoints.close()
    assert {str(read_metrics(workdir)[-1]["step"])} == stopped


def check_one_death(workdir, num_processes, index):
    """One process's death ends the others, who say so."""
    codes, outputs = stop_one(workdir, num_processes, signal.SIGKILL, index)
    assert codes[index] == -signal.SIGKILL
    for other in set(range(num_processes)) - {index}:
        assert codes[other] not in (0, 75), outputs
        assert re.search("another (one|task|process) died", outputs[other]), outputs[other]


def test_one_signal_stops_all_at_one_step_and_one_death_ends_all(tmp_path):
    workdir = tmp_path / "run"
    check_one_signal(workdir, 2, signal.SIGTERM, index=1)
    check_one_death(workdir, 2, index=1)


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [2, 4])
def test_any_process_may_stop_or_die(tmp_path, num_processes):
    workdir = tmp_path / "run"
    check_one_signal(workdir, num_processes, signal.SIGINT, index=0)
    check_one_death(workdir, num_processes, index=0)
    check_one_signal(workdir, num_processes, signal.SIGTERM, index=num_processes - 1)
    check_one_death(workdir, num_processes, index=num_processes - 1)
