"""Several real processes over loopback do what one does: same batches, same losses, one end.

With two CPU devices each. One test is quick; `make test-all` runs the others.
"""

import contextlib
import functools
import json
import random
import re
import signal
import sys
import time

import jax
import numpy as np
import pytest

from tests.objectives.test_distillation import save_teacher
from tests.objectives.test_self_supervised_runs import SMALL_DECODER, SMALL_HEAD
from tests.runs import (
    EVERYTHING,
    LIMIT_SECONDS,
    connected,
    read_metrics,
    rewound,
    start,
    start_processes,
)
from tests.stages import one_device
from tests.states import ITEMS
from vit_jax import main
from vit_jax.checkpoint import Checkpoints

# Few features, for every process compiles them; `test_resume.py` has all.
DROPPED = (
    "--config=tests/tiny.py",
    "--config.model.depth=1",
    "--config.model.dropout_rate=0.1",
    "--config.data.augmentation=random_erasing(0.3)",
)
RANDOM = (*DROPPED, "--config.objective.mixing.mixup_alpha=0.8")
WIDE = (  # So that the axes of the mesh have something to split.
    "--config.model.width=128",
    "--config.model.mlp_width=512",
    "--config.model.num_heads=8",
)
CONFIG = (
    *RANDOM,
    *WIDE,
    "--config.ema_decay=0.9",
    "--config.checkpoint_every_steps=5",
    "--config.keep_checkpoints=10",
)
# `test_mixing.py` mixes on eight devices, a program that is the same on several processes.
ENDLESS = (*DROPPED, "--config.total_steps=1000000", "--config.schedule.name=constant")
DATA = ()
FSDP = ("--config.mesh.data=1", "--config.mesh.fsdp=-1")
TENSOR = ("--config.mesh.data=1", "--config.mesh.tensor=-1")  # Spans all processes.
MIXED = ("--config.mesh.fsdp=2", "--config.mesh.tensor=4")  # Spans two.
TOLERANCE = 1e-5


def finish(processes, timeout=900):
    """The exit codes and outputs; leaves none behind."""
    deadline = time.monotonic() + timeout
    try:
        outputs = [p.communicate(timeout=max(deadline - time.monotonic(), 0))[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def train(num_processes, workdir, *arguments):
    """Runs to the end: this process, with eight devices, or so many others with two each."""
    arguments = (*CONFIG, *arguments, f"--workdir={workdir}")
    if num_processes == 1:
        assert main.main(arguments) == 0
        return
    codes, outputs = finish(start_processes(num_processes, *arguments))
    assert codes == [0] * num_processes, outputs
    assert "this run:" in outputs[0]
    assert not any(" I " in output for output in outputs[1:]), "they report warnings only"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The finished run of so many processes with such a mesh, made once: its workdir."""

    @functools.cache
    def workdir_of(num_processes, mesh):
        workdir = tmp_path_factory.mktemp("trained")
        train(num_processes, workdir, *mesh)
        return workdir

    return workdir_of


def assert_same_run(records, expected):
    assert [r["step"] for r in records] == [r["step"] for r in expected]
    for key in ("train/loss", "eval/loss", "eval_ema/loss", "eval/accuracy", "eval/count"):
        values, references = ([r[key] for r in rs if key in r] for rs in (records, expected))
        assert references, key
        np.testing.assert_allclose(values, references, rtol=0, atol=TOLERANCE, err_msg=key)


def wait_for_step(workdir, step, processes):
    while True:
        assert all(process.poll() is None for process in processes), finish(processes)
        if last_step(workdir) >= step:
            return
        time.sleep(0.02)


def last_step(workdir):
    with contextlib.suppress(OSError, ValueError, IndexError):
        return read_metrics(workdir)[-1]["step"]
    return 0


def stop_some(workdir, num_processes, number, *indices):
    """Sends a signal to processes of a long run; returns all exit codes and outputs."""
    start_step = last_step(workdir)
    processes = start_processes(num_processes, *ENDLESS, f"--workdir={workdir}")
    wait_for_step(workdir, start_step + 5, processes)
    for index in indices:
        processes[index].send_signal(number)
    return finish(processes, timeout=LIMIT_SECONDS)


def check_signal(workdir, num_processes, number, *indices):
    """A signal to some processes makes all save the same step."""
    codes, outputs = stop_some(workdir, num_processes, number, *indices)
    assert codes == [75] * num_processes, outputs
    stopped = {re.search(r"Stopped after step (\d+), which is saved", text)[1] for text in outputs}
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        assert {str(checkpoints.latest_step)} == stopped
    assert {str(last_step(workdir))} == stopped


def check_one_death(workdir, num_processes, index):
    """One process's death ends the others, who say so."""
    codes, outputs = stop_some(workdir, num_processes, signal.SIGKILL, index)
    assert codes[index] == -signal.SIGKILL
    for other in set(range(num_processes)) - {index}:
        assert codes[other] not in (0, 75), outputs
        assert re.search("another (one|task|process) died", outputs[other]), outputs[other]


def test_two_processes_train_as_one_does_until_a_signal_to_one_stops_both(tmp_path):
    together, alone = tmp_path / "together", tmp_path / "alone"
    check_signal(together, 2, signal.SIGTERM, 1)
    with one_device():
        assert main.main((*ENDLESS, "--config.total_steps=4", f"--workdir={alone}")) == 0
    losses, expected = ([r["train/loss"] for r in read_metrics(d)] for d in (together, alone))
    np.testing.assert_allclose(losses[:4], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [DATA, FSDP, TENSOR, MIXED], ids=["data", "fsdp", "tensor", "mix"])
@pytest.mark.parametrize("num_processes", [2, 4])
def test_processes_equal_one_process(trained, num_processes, mesh):
    if mesh is MIXED and num_processes == 2:
        pytest.skip("has no eight devices")
    records = read_metrics(trained(num_processes, mesh))
    assert_same_run(records, read_metrics(trained(1, DATA)))
    assert records[-1]["eval/count"] == 360, "every evaluation image once"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [DATA, FSDP], ids=["data", "fsdp"])
@pytest.mark.parametrize(("before", "after"), [(4, 1), (4, 2), (1, 4), (2, 4)])
def test_a_run_resumes_on_another_number_of_processes(trained, tmp_path, before, after, mesh):
    workdir = tmp_path / "resumed"
    rewound(trained(before, mesh), 5, workdir)
    train(after, workdir, *mesh)
    assert_same_run(read_metrics(workdir), read_metrics(trained(1, DATA)))


OBJECTIVES = {
    "masked_patches": {"corruption_rate": 0.3},
    "masked_autoencoder": SMALL_DECODER,
    "self_distillation": {**SMALL_HEAD, "local_size": 4},
    "distillation": {"mixing.mixup_alpha": 0.8},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_corrupt_and_cut_alike_on_any_number_of_processes(name, tmp_path):
    options = {f"objective.{key}": value for key, value in OBJECTIVES[name].items()}
    options |= {"objective.name": name, "total_steps": 4, "eval_every_steps": 2}
    if name == "distillation":
        wide = {"width": 128, "mlp_width": 512, "num_heads": 8}
        options["init_teacher"] = save_teacher(tmp_path / "teacher.npz", **wide)
    flags = ["--config=tests/tiny.py", *WIDE]
    flags += [f"--config.{key}={value}" for key, value in options.items()]
    assert main.main([*flags, f"--workdir={tmp_path / 'alone'}"]) == 0
    expected = read_metrics(tmp_path / "alone")
    for num_processes, mesh in ((2, DATA), (2, FSDP), (4, MIXED)):
        workdir = tmp_path / f"{num_processes}{len(mesh)}"
        codes, outputs = finish(
            start_processes(num_processes, *flags, *mesh, f"--workdir={workdir}")
        )
        assert codes == [0] * num_processes, outputs
        for key in ("train/loss", "eval/loss"):
            values, wanted = (
                [r[key] for r in rs if key in r] for rs in (read_metrics(workdir), expected)
            )
            np.testing.assert_allclose(values, wanted, rtol=0, atol=TOLERANCE, err_msg=key)


ORDER = """
import hashlib, json, sys
import jax, numpy as np
from vit_jax.devices import distributed
from vit_jax.devices import sharding
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
seen = []
for batch in batches:
    local = {key: everywhere(batch[key]).addressable_data(0) for key in ("index", "image")}
    pixels = hashlib.sha256(np.asarray(local["image"]).tobytes()).hexdigest()
    seen.append((local["index"].tolist(), pixels))
print("seen:", json.dumps(seen))
distributed.shutdown(0)
"""


def seen_batches(num_processes, *arguments):
    """The examples, and a hash of the pixels, that each process sees of batches 44 to 47.

    Between them an epoch ends.
    """
    command = (sys.executable, "-c", ORDER, *CONFIG, "--workdir=none", *arguments)
    processes = [
        start(*command, *flags, JAX_NUM_CPU_DEVICES="2") for flags in connected(num_processes)
    ]
    codes, outputs = finish(processes)
    assert not any(codes), outputs
    return [json.loads(re.search(r"^seen: (.*)$", text, re.MULTILINE)[1]) for text in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [2, 4])
def test_every_global_batch_has_the_same_images_in_the_same_order(num_processes):
    (expected,) = seen_batches(1)
    for mesh in (DATA, TENSOR):  # Along a tensor axis all processes hold all rows.
        assert seen_batches(num_processes, *mesh) == [expected] * num_processes


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [2, 4])
def test_any_process_may_stop_or_die(tmp_path, num_processes):
    workdir = tmp_path / "run"
    check_signal(workdir, num_processes, signal.SIGINT, 0)
    check_one_death(workdir, num_processes, index=0)
    check_signal(workdir, num_processes, signal.SIGTERM, *range(num_processes))
    check_one_death(workdir, num_processes, index=num_processes - 1)


def saved_arrays(workdir):
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.latest_step
        return {item: checkpoints.restore_item(step, item) for item in ITEMS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_processes", "total_steps", "num_kills"), [(2, 200, 10), (4, 60, 2)], ids=["2", "4"]
)
def test_kills_at_random_change_no_bit(tmp_path, capsys, num_processes, total_steps, num_kills):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    durations = (f"--config.total_steps={total_steps}", "--config.checkpoint_every_steps=7")
    command = (num_processes, "--config=tests/tiny.py", *EVERYTHING, *durations)
    codes, outputs = finish(start_processes(*command, f"--workdir={undisturbed}"))
    assert codes == [0] * num_processes, outputs

    kills = []
    for step in sorted(random.sample(range(5, total_steps - 10), num_kills)):
        processes = start_processes(*command, f"--workdir={disturbed}")
        wait_for_step(disturbed, max(step, last_step(disturbed) + 1), processes)
        time.sleep(random.uniform(0, 0.1))
        index = random.randrange(num_processes)
        processes[index].kill()
        codes, outputs = finish(processes, timeout=LIMIT_SECONDS)
        assert codes.pop(index) == -signal.SIGKILL, (kills, outputs)
        assert not {0, 75} & set(codes), (kills, outputs)
        kills.append((index, last_step(disturbed)))
    codes, outputs = finish(start_processes(*command, f"--workdir={disturbed}"))
    assert codes == [0] * num_processes, outputs

    with capsys.disabled():
        print(f"\n{len(kills)} kills, of (process, after step): {kills}")
    for key in ("step", "train/loss"):
        records, expected = ([r[key] for r in read_metrics(d)] for d in (disturbed, undisturbed))
        assert records == expected
    jax.tree.map(np.testing.assert_array_equal, saved_arrays(disturbed), saved_arrays(undisturbed))
