"""Reports in headless Chromium: no error, no request, and nothing wider than a phone's screen."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from tests.published import random_model
from tests.test_analyze import TINY, subject_of
from vit_jax import analyze
from vit_jax.analysis import gallery
from vit_jax.pages import Section, render

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy"[^>]*>')
BROWSERS_OWN = "not an origin"  # Who asks, where it is the browser and not the page.
MEASURE = (
    b"<script>document.title = document.documentElement.scrollWidth + '/' + innerWidth</script>"
)

pytestmark = [
    pytest.mark.slow,  # A browser takes seconds to start.
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt install chromium"),
]


def browse(page: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
    command = [BROWSER, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += ["--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND", *flags]
    command += ["--no-sandbox"] * (os.geteuid() == 0)
    return subprocess.run([*command, page.as_uri()], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """All figures of a model, and a table with a long name."""
    subject = subject_of(random_model("ViT-Ti/8", **TINY))
    found = [finding for _, finding in analyze.findings(subject, (), pytest.fail)]
    sections = [Section(each.title, each.caption, (each.picture,)) for each in found]
    assert len(sections) == len(gallery.FIGURES)
    rows = [("key", "value"), ("a" * 100, "b" * 100)]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(render("x" * 100, "/a/path/" * 20, [*sections, Section("T", table=rows)]))
    return path


def errors_and_requests(page, log):
    """Whether the console said anything, and the addresses that the page asked for."""
    said = browse(page, f"--log-net-log={log}", "--dump-dom").stderr
    asked = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    own = [each["url"] for each in asked if each.get("initiator", BROWSERS_OWN) != BROWSERS_OWN]
    return "CONSOLE" in said, [url for url in own if not url.startswith(("file:", "data:"))]


def test_a_report_has_no_error_and_asks_nobody(page, tmp_path):
    assert errors_and_requests(page, tmp_path / "net.json") == (False, [])
    asking = tmp_path / "asking.html"  # What the test would see.
    asking.write_text('<img src="http://127.0.0.1:9/x.png"><script>undefined_name</script>')
    assert errors_and_requests(asking, tmp_path / "net.json") == (
        True,
        ["http://127.0.0.1:9/x.png"],
    )


@pytest.mark.parametrize("width", [500, 1280])  # Headless windows have 500 pixels at least.
def test_a_report_is_no_wider_than_its_window(page, width, tmp_path):
    measured = tmp_path / "measured.html"
    text = POLICY.sub(b"", page.read_bytes())
    measured.write_bytes(text.replace(b"</body>", MEASURE + b"</body>"))
    dom = browse(measured, "--dump-dom", f"--window-size={width},800").stdout
    wide, inner = map(int, re.search(r"<title>(\d+)/(\d+)</title>", dom).groups())
    assert wide <= inner
    assert inner == pytest.approx(width, abs=20)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_is_seen(page, width, tmp_path):
    """Its pictures are decoded: colours are on the screen."""
    from PIL import Image

    shot = tmp_path / "shot.png"
    browse(page, f"--screenshot={shot}", f"--window-size={width},3000")
    pixels = np.asarray(Image.open(shot).convert("HSV"))
    assert pixels.shape[1] == width
    assert (pixels[..., 1] > 100).mean() > 0.02
