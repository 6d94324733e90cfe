"""What `vit_jax.deduplicate` finds: copies of photographs, changed in ways that are usual on the web.

    python benchmarks/perceptual_hash.py FILE_OR_FOLDER...

The pictures are brought to at most 1,200 pixels and, to have more of them, cut into ninths as well.
"""

import io
import sys

import numpy as np
from PIL import Image

from vit_jax.data.images.picture import decode
from vit_jax.data.picture_files import find_files
from vit_jax.deduplicate.__main__ import DISTANCE
from vit_jax.deduplicate.fingerprints import SIZE, fingerprint


def stored(image, file_format):
    file = io.BytesIO()
    Image.fromarray(image).save(file, file_format, quality=50)
    return decode(file.getvalue(), channels=3)


def resized(image, width, height=None):
    height = height or max(1, round(image.shape[0] * width / image.shape[1]))
    return np.asarray(Image.fromarray(image).resize((width, height)))


def cropped(image, share):
    rows, columns = (round(side * share) for side in image.shape[:2])
    return np.ascontiguousarray(image[rows : len(image) - rows, columns : image.shape[1] - columns])


CHANGES = {
    "stored as JPEG, quality 50": lambda image: stored(image, "JPEG"),
    "stored as WebP, quality 50": lambda image: stored(image, "WEBP"),
    "256 pixels wide": lambda image: resized(image, 256),
    "64 pixels wide": lambda image: resized(image, 64),
    "224 x 224 pixels": lambda image: resized(image, 224, 224),
    "2 % cut off at each side": lambda image: cropped(image, 0.02),
    "5 % cut off at each side": lambda image: cropped(image, 0.05),
    "3 % cut off, 128 pixels wide": lambda image: resized(cropped(image, 0.03), 128),
    "5 % cut off at one side": lambda image: image[:, round(image.shape[1] * 0.05) :],
    "10 % cut off at each side": lambda image: cropped(image, 0.1),
}


def distances(fingerprints, others):
    """The bits that differ, uint8 [N, M], as `fingerprints.nearest` counts them."""
    pairs = [(1, column) for column in range(1, SIZE)] + [(column, 1) for column in range(2, SIZE)]
    return np.min(
        [np.bitwise_count(fingerprints[:, None, i] ^ others[None, :, j]) for i, j in pairs], axis=0
    )


def ninths(image):
    for band in np.array_split(image, 3, axis=0):
        yield from (np.ascontiguousarray(part) for part in np.array_split(band, 3, axis=1))


def main(inputs):
    photographs = []
    for path in find_files(inputs, ()):
        with open(path, "rb") as file:
            picture = Image.fromarray(decode(file.read(), channels=3))
        picture.thumbnail((1200, 1200))
        if min(picture.size) >= 200:
            photographs.append(np.asarray(picture))
    parts = [part for image in photographs for part in ninths(image)]
    for name, images in (("photographs", photographs), ("ninths", parts)):
        originals = np.stack([fingerprint(image) for image in images])
        pairs = np.triu_indices(len(images), 1)
        different = originals[pairs[0], 0] != originals[pairs[1], 0]
        near = (distances(originals, originals)[pairs] <= DISTANCE) & different
        print(f"{len(images):,} {name}: of {different.sum():,} pairs {near.sum()} are near")
        for change, function in CHANGES.items():
            changed = np.stack(
                [fingerprint(np.ascontiguousarray(function(image))) for image in images]
            )
            found = np.diag(distances(changed, originals)) <= DISTANCE
            print(f"  {change:30} {found.mean():6.1%} found")


if __name__ == "__main__":
    main(sys.argv[1:])
