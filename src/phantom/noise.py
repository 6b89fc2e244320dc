"""Noise: the periodic random fields from which walls, lesions and fluids are painted, and the mixing of colours."""

import cv2
import numpy as np
from scipy import fft


def frequency(shape: tuple[int, int], around: float = 1.0) -> np.ndarray:
    """Length of the wave vector of every term of `fft.rfft2`, in waves per texel; axis 0 counts `around` times."""
    fy, fx = fft.fftfreq(shape[0])[:, None] * around, fft.rfftfreq(shape[1])[None, :]
    return np.sqrt(fy * fy + fx * fx)


def band_pass(field: np.ndarray, f: np.ndarray, wave: float, spread: float) -> np.ndarray:
    """Keep what is about `wave` texels long in a periodic field; float32 with variance 1.

    The filter is a Gaussian over the logarithm of the frequency `f`, of standard deviation `spread / sqrt(2)`.
    """
    kept = fft.irfft2(fft.rfft2(field) * np.exp(-((np.log(f * wave) / spread) ** 2)), s=field.shape).astype(np.float32)
    return kept / kept.std()


def band(rng: np.random.Generator, shape: tuple[int, int], wave: float, spread: float, around: float = 1.0):
    """Periodic noise of one wavelength (texels), float32, variance 1; `around` > 1 stretches it along axis 0."""
    f = frequency(shape, around).astype(np.float32)
    f[0, 0] = 1e-9
    return band_pass(rng.standard_normal(shape, np.float32), f, wave, spread)


def soft(x: np.ndarray) -> np.ndarray:
    """Smooth step from 0 at 0 to 1 at 1."""
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)


def mix(colour, other, share: np.ndarray) -> np.ndarray:
    """From `colour` (share 0) to `other` (share 1), float32 [3, ...]; colours are RGB triples or fields [3, ...]."""
    colour, other = (np.asarray(c, np.float32).reshape(3, *np.shape(c)[1:] or (1, 1)) for c in (colour, other))
    return colour + (other - colour) * np.asarray(share, np.float32)


def drawn(canvas: np.ndarray, blur: float) -> np.ndarray:
    """A drawing uint8 as opacity float32 0..1, its edges blurred by `blur` texels."""
    return cv2.GaussianBlur(canvas, (0, 0), blur).astype(np.float32) / 255
