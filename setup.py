"""Packaging of vit_jax. Exact tested versions are in `requirements.lock`, which the Makefile installs."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "vit_jax/__init__.py").read_text()).group(1)

REQUIRED = [
    "absl-py>=2.1",
    "array_record>=0.8.1",
    "clu>=0.0.12",
    "einops>=0.8",
    "etils[epath]>=1.14",
    "flatbuffers>=24.3.25",  # jax.export serialises with it.
    "flax>=0.12.6,<0.13",  # NNX still changes between minor versions.
    "fsspec>=2024.6",
    "google-crc32c>=1.6",  # The checksums of TFRecord files.
    "grain>=0.2.15,<0.3",
    "huggingface_hub>=1.0,<3",
    "jax>=0.10",
    "matplotlib>=3.9",
    "ml_collections>=1.0",
    "numpy>=2.0",
    "opencv-python-headless>=4.10.0.84",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.12,<0.13",  # The v1 interface is still moving.
    "Pillow>=11.3",  # Reads AVIF.
    "pyarrow>=17",
    "safetensors>=0.5",
    "scikit-learn>=1.5",
    "scipy>=1.14",
    "simplejpeg>=1.8,<2",
    "tensorboardX>=2.6.4",
    "tensorflow-datasets>=4.9.10",  # Its readers only: TensorFlow itself is never imported.
    "tqdm>=4.66",
]
DEVELOPMENT = [
    "kubernetes-validate>=1.30",
    "mypy>=2.4",
    "pre-commit>=4",
    "pytest-xdist>=3.6.1",
    "pytest>=8",
    "ruff>=0.9",
]

CONFIGS = {
    "vit_jax.configs": "configs",
    "vit_jax.configs.studies": "configs/studies",
    "vit_jax.configs.suites": "configs/suites",
}

setup(
    name="vit_jax",
    version=VERSION,
    description="Pre-train and fine-tune Vision Transformers in JAX, exactly as the paper describes.",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # The config files travel with the package; a checkout has them beside it.
    packages=[*find_packages(include=["vit_jax", "vit_jax.*"]), *CONFIGS],
    package_dir=CONFIGS,
    # Its annotations are for others' checkers too.
    package_data={"vit_jax": ["py.typed", "weights/*.json"]},
    install_requires=REQUIRED,
    extras_require={
        "cuda12": ["jax[cuda12]"],
        "cuda13": ["jax[cuda13]"],
        "tpu": ["jax[tpu]"],
        "plan": ["jax[tpu]"],  # libtpu, whose compiler needs no TPU.
        "plan-gpu": [
            "jax-cuda12-plugin"
        ],  # XLA's for NVIDIA, of jaxlib's version: it needs no GPU.
        "wandb": ["wandb>=0.19"],
        "mlflow": ["mlflow>=3"],
        "dev": DEVELOPMENT,
    },
)
