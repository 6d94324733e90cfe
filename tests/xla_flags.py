"""How XLA compiles in tests, whose time is mostly compilation: a fifth of what it takes by default.

Imported before JAX, which reads the environment once.
"""

import jaxlib.version

FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jaxlib.version.__version_info__ < (0, 11):  # Later ones have but one code generator.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
XLA_FLAGS = " ".join(FLAGS)
