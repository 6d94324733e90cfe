"""What every test relies on: the CPU, as eight virtual devices, set before JAX starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the tests' time: a third of it is enough without LLVM's optimisations.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"

import jax
from absl import flags

jax.config.update("jax_num_cpu_devices", 8)
flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags.
