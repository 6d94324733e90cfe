"""The wheel: its files run where no checkout is, and bring the config files."""

import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.slow
def test_the_files_of_a_wheel_find_their_configs_in_an_empty_folder(tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    # What a wheel packs; packing it needs nothing but a network for the newest setuptools.
    build = [sys.executable, "setup.py", "build", f"--build-base={tmp_path / 'base'}"]
    subprocess.run([*build, f"--build-lib={site}"], cwd=ROOT, check=True, capture_output=True)
    for folder in ("configs", "configs/suites"):
        shipped = {path.name for path in (site / "vit_jax" / folder).glob("*.py")}
        assert shipped == {path.name for path in (ROOT / folder).glob("*.py")}

    assert (site / "vit_jax" / "py.typed").exists()

    empty.mkdir()
    command = "-c", "import sys; from vit_jax.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.run(
        # Isolated from this checkout: -S leaves out site-packages with its editable install.
        [sys.executable, "-S", *command, "--config=configs/vit.py:ti16", "--dry_run"],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": f"{site}:{sysconfig.get_path('purelib')}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "ViT-Ti/16 for 1000 classes" in process.stderr
