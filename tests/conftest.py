"""What every test relies on: the CPU, as eight virtual devices, set before JAX starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from absl import flags

jax.config.update("jax_num_cpu_devices", 8)
flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags.
