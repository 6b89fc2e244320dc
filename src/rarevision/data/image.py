"""One image: its decoding, its size, and everything that can be wrong with it.

Policy, stated once: 8-bit RGB, RGBA with a fully opaque alpha, and palette images without transparency become RGB
without loss and are read. Grey, 16 bit, CMYK and anything transparent are refused: colour is the finding, and a frame
that lost it, or that needs a guess to show it, is not the capsule's.
"""

import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from rarevision.data.errors import FrameError

PNG = b"\x89PNG\r\n\x1a\n"
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
HEAD, TAIL = 1 << 16, 12  # bytes that `check` reads
MAX_PIXELS = 4096 * 4096  # a capsule frame has under 1 megapixel; more is a decompression bomb


def read_bytes(path: str | Path, ends: bool = False) -> bytes:
    """The file's content, or of a long file only its two `ends`; FrameError if it is gone, unreadable or empty."""
    try:
        with open(path, "rb") as f:
            if ends and (size := os.fstat(f.fileno()).st_size) > HEAD + TAIL:
                head = f.read(HEAD)
                f.seek(size - TAIL)
                return head + f.read()
            data = f.read()
    except FileNotFoundError:
        reason = "a broken link" if os.path.islink(path) else "vanished: it was listed and is no longer there"
        raise FrameError(path, reason) from None
    except PermissionError:
        raise FrameError(path, "no permission to read it") from None
    except OSError as error:
        raise FrameError(path, f"cannot be read ({error.strerror or error})") from None
    if not data:
        raise FrameError(path, "zero bytes")
    return data


def _open(path: str | Path, data: bytes) -> Image.Image:
    """The image with its header read; FrameError unless it is a PNG or JPEG of a sane size."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise FrameError(path, "absurd dimensions (decompression bomb)") from None
    except UnidentifiedImageError:
        raise FrameError(path, "not an image") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise FrameError(path, f"damaged header ({error})") from None
    width, height = image.size
    if width * height > MAX_PIXELS or min(width, height) < 1:
        raise FrameError(path, f"absurd dimensions ({width} x {height} px)")
    if image.format not in ("PNG", "JPEG"):
        raise FrameError(path, f"a {image.format} file, not PNG or JPEG")
    return image


def _refused_mode(image: Image.Image) -> str:
    """Why the image's mode cannot become 8-bit RGB without loss of what a capsule frame holds; '' if it can."""
    if image.mode in ("RGB", "RGBA", "P"):
        return ""
    kinds = {"L": "grey", "1": "black and white", "LA": "grey with alpha", "CMYK": "CMYK", "F": "floating point"}
    return kinds.get(image.mode, "16 bit" if image.mode.startswith("I") else image.mode)


def png_kind(data: bytes) -> tuple[int, int] | None:
    """Bit depth and colour type of a PNG (2 RGB, 3 palette, 6 RGBA, 0 and 4 grey), None for anything else."""
    return (data[24], data[25]) if data[:8] == PNG and len(data) > 33 else None


def _png_chunks(data: bytes, path: str | Path) -> set[bytes]:
    """The chunk types of a PNG; FrameError unless every chunk is whole, its checksum right and the end is there.

    PIL checks no image data chunk, OpenCV hands out half-filled images: this is what both then rely on.
    """
    at, kinds = 8, set()
    while b"IEND" not in kinds:
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if at + 12 + size > len(data):
            raise FrameError(path, "truncated")
        if zlib.crc32(memoryview(data)[at + 4 : at + 8 + size]) != int.from_bytes(data[at + 8 + size : at + 12 + size]):
            raise FrameError(path, f"damaged (checksum of chunk {kind.decode('latin-1')!r})")
        kinds.add(kind)
        at += 12 + size
    return kinds


def decode(data: bytes, path: str | Path = "<bytes>") -> np.ndarray:
    """uint8 [H, W, 3] RGB of an image file's content, every fault a FrameError."""
    if kind := png_kind(data):
        chunks = _png_chunks(data, path)
        if kind[0] == 16:  # PIL reads 16-bit RGB as 8-bit without a word
            raise FrameError(path, "wrong mode: 16 bit")
        pixels = int.from_bytes(data[16:20]) * int.from_bytes(data[20:24])
        if kind == (8, 2) and pixels <= MAX_PIXELS and not chunks & {b"tRNS", b"acTL"}:
            plain = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)  # a third faster than PIL
            if plain is not None:
                return plain
    image = _open(path, data)
    if reason := _refused_mode(image):
        raise FrameError(path, f"wrong mode: {reason}")
    try:
        image.load()
        if "transparency" in image.info:
            image = image.convert("RGBA")
        if image.mode == "RGBA" and np.asarray(image)[..., 3].min() < 255:
            raise FrameError(path, "wrong mode: transparent pixels")
        return np.array(image.convert("RGB"))
    except FrameError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, struct.error) as error:
        raise FrameError(path, f"truncated or damaged ({error})") from None


def read_image(path: str | Path) -> np.ndarray:
    """uint8 [H, W, 3] RGB of a frame, or a FrameError naming file and reason."""
    return decode(read_bytes(path), path)


def check(path: str | Path) -> tuple[int, int]:
    """Width and height in px of a frame whose header and end are right, else a FrameError: reads 64 kB at most.

    Damage in between shows only when the frame is decoded.
    """
    data = read_bytes(path, ends=True)
    image = _open(path, data)
    whole = data.endswith(PNG_END) if image.format == "PNG" else data.endswith(b"\xff\xd9")
    if not whole or _refused_mode(image) or image.mode != "RGB" or "transparency" in image.info:
        height, width, _ = read_image(path).shape  # something is unusual: let decoding judge and name it
        return width, height
    if (kind := png_kind(data)) and kind[0] == 16:
        raise FrameError(path, "wrong mode: 16 bit")
    return image.size


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bicubic with antialiasing, uint8 [H, W, 3] -> [height, width, 3]: PIL's (open_clip's) result, faster."""
    if image.shape[:2] == (height, width):
        return image
    import torch  # half a gigabyte that reading an index or checking files does without

    # rows of pixels stay rows of pixels (channels last) on both sides: no copy, and the fast kernel
    tensor = torch.from_numpy(np.ascontiguousarray(image))[None].permute(0, 3, 1, 2)
    tensor = torch.nn.functional.interpolate(tensor, (height, width), mode="bicubic", antialias=True)
    return np.ascontiguousarray(tensor[0].permute(1, 2, 0).numpy())


def shrink(image: np.ndarray, size: int) -> np.ndarray:
    """The shorter side brought to `size` px; smaller images stay as they are."""
    height, width = image.shape[:2]
    if min(height, width) <= size:
        return image
    scale = size / min(height, width)
    return resize(image, round(height * scale), round(width * scale))


def square(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [size, size, 3]: shorter side to `size`, centre cropped, as open_clip's evaluation transform does."""
    height, width = image.shape[:2]
    if height != width:
        short = min(height, width)
        height, width = size * height // short, size * width // short  # rounded as torchvision does
        image = resize(image, height, width)
        top, left = round((height - size) / 2), round((width - size) / 2)
        return np.ascontiguousarray(image[top : top + size, left : left + size])
    return resize(image, size, size)
