"""A large model's first state: made where it will lie, never twice."""

import subprocess
import sys

import pytest

from tests.runs import ROOT

SCRIPT = """
import resource
import jax
from vit_jax.devices import sharding
from vit_jax.config_file import load_config
from vit_jax.data.dataset import open_dataset
from vit_jax.training.planning import bytes_per_device
from vit_jax.training.experiment import make_experiment
from vit_jax.training.state import initial_state

jax.config.update("jax_num_cpu_devices", 8)
config = load_config("configs/vit.py:h14", ["mesh.fsdp=8"])
mesh = sharding.build_mesh(config.mesh)
experiment = make_experiment(config, mesh, open_dataset(config, required=False))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
state = jax.block_until_ready(initial_state(experiment.initialize, config.seed, experiment.state))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
print(peak * 1024 / whole, 8 * bytes_per_device(experiment.state) / whole)
"""


@pytest.mark.slow
def test_the_largest_models_first_state_takes_little_more_than_itself():
    """ViT-H/14 with AdamW, 7.6 GB, on 8 virtual devices in one process."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, shards = map(float, done.stdout.split())
    assert shards < 1.01  # Nothing but small parameters is copied.
    assert peak < 1.5, peak
