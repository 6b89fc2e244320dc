"""One image file: its decoding and everything that can be wrong with it.

Policy, stated once: 8-bit RGB, RGBA with a fully opaque alpha, and palette images without transparency become RGB
without loss and are read. Grey, 16 bit, CMYK and anything transparent are refused: colour is the finding, and a frame
that lost it, or that needs a guess to show it, is not the capsule's.
"""

import io
import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 4096 * 4096  # a capsule frame has under 1 megapixel; more is a decompression bomb


class FrameError(ValueError):
    """A frame that cannot be used: `.path` and `.reason`."""

    def __init__(self, path: str | Path, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = Path(path), reason

    def __reduce__(self):
        return FrameError, (self.path, self.reason)  # workers send it to the parent


def read_bytes(path: str | Path) -> bytes:
    """The file's content; FrameError if it is gone, unreadable or empty."""
    try:
        with open(path, "rb") as f:
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


def _open(path: str | Path, data: bytes | str | Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
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


def header(path: str | Path) -> tuple[int, int]:
    """Width and height in px from the file's header."""
    return _open(path, read_bytes(path)).size


def decode(data: bytes, path: str | Path = "<bytes>") -> np.ndarray:
    """uint8 [H, W, 3] RGB of an image file's content, every fault a FrameError."""
    image = _open(path, data)
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[24] == 16:  # PIL reads 16-bit RGB as 8-bit without a word
        raise FrameError(path, "wrong mode: 16 bit")
    if reason := _refused_mode(image):
        raise FrameError(path, f"wrong mode: {reason}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image.load()
        if image.mode == "P":
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
        if image.mode == "RGBA" and image.getextrema()[3][0] < 255:
            raise FrameError(path, "wrong mode: transparent pixels")
        return np.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombWarning) as error:
        if isinstance(error, FrameError):
            raise
        raise FrameError(path, f"truncated or damaged ({error})") from None


def read_image(path: str | Path) -> np.ndarray:
    """uint8 [H, W, 3] RGB of a frame, or a FrameError naming file and reason."""
    return decode(read_bytes(path), path)
