"""What the training loop itself costs: its CPU time for an update whose step does nothing.

    PYTHONPATH=. python benchmarks/loop_cost.py [UPDATES]

The loop is that of `vit_jax.benchmark train`: batches, metrics, log, TensorBoard and `metrics.jsonl`. It runs
ahead of the devices, so this time is hidden as long as it is shorter than a step.
"""

import dataclasses
import sys
import tempfile
import time
from contextlib import closing

import jax.numpy as jnp

from vit_jax.benchmark.loop import NoCheckpoints, NoEvaluation, Ready, endless
from vit_jax.benchmark.speed import SYNTHETIC
from vit_jax.benchmark.step import open_experiment
from vit_jax.config_file import load_config
from vit_jax.train import Tools, train
from vit_jax.training.profiling import Profiler
from vit_jax.training.state import initial_state
from vit_jax.training.step_log import open_log

WARM_UP = 100
NONE_SKIPPED = jnp.int32(0)
METRICS = {name: jnp.float32(1) for name in ("loss", "grad_norm", "learning_rate", "accuracy")}


def do_nothing(state, frozen, batch):
    """In the shape of a step."""
    return state, {**METRICS, "skipped": NONE_SKIPPED}


class Stopwatch:
    """Ends the loop after so many updates, and takes their time."""

    def __init__(self, updates):
        self.updates, self.over = updates, False

    def see(self, step, numbers):
        """Called after every update."""
        if step == WARM_UP:
            self.start = time.process_time()
        self.over = step == WARM_UP + self.updates
        if self.over:
            self.seconds = time.process_time() - self.start


def main(updates):
    """Prints a line for each way to log."""
    for every in (50, 1):
        overrides = [f"log_every_steps={every}", "batch_size=8", "mesh.data=1"]
        experiment = endless(
            open_experiment(load_config("configs/digits.py", overrides), SYNTHETIC), SYNTHETIC
        )
        state = initial_state(experiment.initialize, 0, experiment.state)
        experiment = dataclasses.replace(experiment, step=Ready(do_nothing))
        watch = Stopwatch(updates)
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(open_log(experiment, folder, 0)) as log,
        ):
            profiler = Profiler(experiment.config.profile, folder)
            tools = Tools(NoEvaluation(), NoCheckpoints(), log, profiler, watch, lambda: False)
            train(experiment, state, {}, tools)
        print(f"log_every_steps={every}: {1e3 * watch.seconds / updates:.2f} ms of CPU an update")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
