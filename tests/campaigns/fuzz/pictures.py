"""Pictures of every format that can be written here, and what decoding a mutated one may give."""

import contextlib
import itertools
import pathlib
import random

import cv2
import numpy as np
from PIL import Image

from tests.campaigns.fuzz.mutations import mutate, truncate
from tests.data.pictures import encode, encode_npy, encode_tiff, photograph, random_image
from vit_jax.data.images.picture import Decoding, decode, decode_for_later
from vit_jax.errors import UserError

MAX_BYTES = 64 * 2**20
SETTINGS = (
    Decoding(MAX_BYTES),
    Decoding(MAX_BYTES),
    Decoding(MAX_BYTES, bit_depth=12),
    Decoding(MAX_BYTES, value_range=(0.0, 4095.0)),
    Decoding(MAX_BYTES, value_range=(-1.0, 1.0), dtype="float32"),
    Decoding(MAX_BYTES, dtype="float32"),
)
CHANNELS = (1, 3, 5)


def seeds() -> dict[str, bytes]:
    """A small picture in every format and kind, by a name that begins with the format's."""
    colours = Image.fromarray(photograph(24, 32))
    grey, palette = colours.convert("L"), colours.quantize(16)
    transparent = colours.copy()
    transparent.putalpha(grey)
    deep = random_image(24, 32, 1).astype(np.uint16) * 257
    frames = {"save_all": True, "append_images": [colours.rotate(180)]}
    exif = Image.Exif()
    exif[0x0112] = 6
    generator = np.random.default_rng(0)
    bands = generator.integers(0, 4096, (24, 32, 5), np.uint16)
    floats = generator.uniform(-1, 1, (24, 32, 5)).astype(np.float32)
    files = {
        "PNG": encode(colours),
        "PNG palette": encode(palette),
        "PNG alpha": encode(transparent),
        "PNG bits": encode(colours.convert("1")),
        "PNG deep": encode(deep),
        "PNG deep colours": cv2.imencode(".png", bands[..., :3])[1].tobytes(),
        "PNG animated": encode(colours, **frames),
        "JPEG": encode(colours, "JPEG", exif=exif),
        "JPEG progressive": encode(colours, "JPEG", progressive=True),
        "JPEG grey": encode(grey, "JPEG"),
        "JPEG CMYK": encode(colours.convert("CMYK"), "JPEG"),
        "GIF": encode(palette, "GIF", **frames),
        "WEBP": encode(colours, "WEBP"),
        "WEBP lossless": encode(transparent, "WEBP", lossless=True),
        "WEBP animated": encode(colours, "WEBP", **frames),
        "TIFF deep": encode(deep, "TIFF"),
        "TIFF JPEG": encode(colours, "TIFF", compression="jpeg"),
        "TIFF LZW": encode(colours, "TIFF", compression="tiff_lzw"),
        "TIFF bits": encode(colours.convert("1"), "TIFF", compression="group4"),
        "TIFF float": encode(grey.convert("F"), "TIFF"),
        "TIFF 5 bands": encode_tiff(bands),
        "TIFF 5 planes": encode_tiff(bands, compression=8, planar=2),
        "TIFF 5 floats": encode_tiff(floats, compression=8),
        "PPM deep": encode(deep, "PPM"),
        "TGA packed": encode(colours, "TGA", compression="tga_rle"),
        "NPY": encode_npy(photograph(24, 32)),
        "NPY 5 floats": encode_npy(floats),
    }
    plain = ("AVIF", "BMP", "DDS", "JPEG2000", "PCX", "PPM", "QOI", "SGI", "TGA", "TIFF")
    return files | {name: encode(colours, name) for name in plain if name in Image.SAVE}


def readings(content: bytes) -> list[tuple[int, Decoding, np.ndarray]]:
    """Channels and settings by which a file can be decoded, and the pixels."""
    found = []
    for channels, how in itertools.product(CHANNELS, SETTINGS):
        with contextlib.suppress(UserError):
            found.append((channels, how, decode(content, channels, how)))
    return found


class Pictures:
    """Decoding: pixels of the promised shape and type, the same each time, or a DataError.

    Of a picture that is cut short, only the pixels of the whole one will do.
    """

    max_growth_mib = 512  # Eight times what a picture may take.

    def __init__(self, folder: pathlib.Path):
        """Takes nothing of `folder`."""
        del folder
        self.files = seeds()
        self.readings = {name: readings(content) for name, content in self.files.items()}

    def trial(self, rng: random.Random, folder: pathlib.Path) -> str:
        del folder
        name = rng.choice(list(self.files))
        channels, how, original = rng.choice(self.readings[name])
        content, kind = mutate(self.files[name], rng)
        pixels = decode(content, channels, how)
        case = f"{name} ({kind.__name__}, {channels} channels, {how})"
        shape, dtype = pixels.shape, pixels.dtype
        if len(shape) != 3 or shape[2] != channels or dtype != how.dtype or not pixels.size:
            raise AssertionError(f"{case}: {dtype} {shape}")
        kept = decode_for_later(content, channels, how)
        for again in (decode(content, channels, how), decode(kept, channels, how)):
            if not np.array_equal(pixels, again):
                raise AssertionError(f"{case}: other pixels each time")
        is_same = np.array_equal(pixels, original)
        if kind is truncate and not is_same:
            raise AssertionError(f"{case}: cut to {len(content)} bytes, and other pixels")
        return "same" if is_same else "other"
