"""A large model's first state: made where it will lie, never twice."""

import subprocess
import sys

import pytest

from tests.runs import ROOT

SCRIPT = """
import resource
import jax
from vit_jax import sharding, train
from vit_jax.config import durations, model_options
from vit_jax.config_file import load_config
from vit_jax.optimizer import build_optimizer
from vit_jax.parameter_groups import parameter_groups
from vit_jax.plan import bytes_per_device

jax.config.update("jax_num_cpu_devices", 8)
config = load_config("configs/vit.py:h14", ["mesh.fsdp=8"])
mesh = sharding.build_mesh(config.mesh)
options = model_options(config, 1000)
groups = parameter_groups(config.optimizer, train.abstract_params(config, options))
schedule = train.build_schedule(config, durations(config, 1_281_167))
optimizer = build_optimizer(config.optimizer, schedule, groups)
initialize = train.make_initializer(config, options, optimizer, groups.trainable)
abstract = train.abstract_state(initialize, config.seed, mesh)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
state = jax.block_until_ready(train.initial_state(initialize, config.seed, abstract))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
print(peak * 1024 / whole, 8 * bytes_per_device(abstract) / whole)
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
