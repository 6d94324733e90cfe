"""How large a picture may be for its file."""

import pytest

from vit_jax.data.images.limits import check_size
from vit_jax.errors import DataError


@pytest.mark.parametrize(
    ("kind", "height", "width", "file_bytes", "pixel_bytes"),
    [
        ("GIF", 1, 250, 0, 4),  # An eighth of the memory is allowed to any file.
        ("GIF", 10, 50, 0, 2),  # Pillow takes four bytes a pixel even so.
        ("NPY", 5, 10, 0, 20),
        ("JPEG", 4, 500, 4, 4),  # All of it to a file that may hold so much: 2,000 bytes for one.
        ("GIF", 4, 500, 2, 4),  # Of other formats 6,000.
    ],
)
def test_what_is_just_allowed_and_what_no_more(kind, height, width, file_bytes, pixel_bytes):
    decoded = height * width * max(pixel_bytes, 4)
    limit = 8 * decoded if file_bytes == 0 else decoded
    check_size(kind, height, width, file_bytes, limit, pixel_bytes)
    with pytest.raises(DataError, match=f"{width}×{height} pixels"):
        check_size(kind, height, width, max(file_bytes - 1, 0), limit - 8, pixel_bytes)
    with pytest.raises(DataError, match=f"{kind} file of 1,000,000 bytes"):
        check_size(kind, height, width, 1_000_000, decoded - 1, pixel_bytes)


def test_a_file_that_is_too_small_for_its_pixels():
    check_size("JPEG", 4, 500, 4, 8000)
    check_size("GIF", 4, 500, 2, 8000)
    for kind, file_bytes in (("JPEG", 3), ("PNG", 3), ("MPO", 3), ("GIF", 1)):
        with pytest.raises(DataError, match="more than it may take"):
            check_size(kind, 4, 500, file_bytes, 8000)
