"""Files: written whole or not at all, and the hashes by which a later run knows what it is looking at."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rarevision.errors import UserError

VERSIONED = ("numpy", "scipy", "torch", "torchvision", "timm", "open_clip_torch", "transformers", "accelerate")


@contextlib.contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` with the same suffix; rename it into place on success, remove it on error.

    A reader sees the old file or the whole new one, never a part; two writers never share a temporary name.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.{time.monotonic_ns()}.tmp{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as f:
            os.fsync(f.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_toml(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such config", file=path, remedy="choose one of configs/*.toml") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read as TOML: {error}", file=path) from None


def sha256(path: str | Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Hash of anything JSON can hold, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def fingerprint(root: str | Path) -> str:
    """Hash over name, size and time of writing of every file below a folder: any change of one changes it.

    Reads no file; a stat per file (about 5 us on a local disk, so 20 s for the whole of Galar). Hidden files are left
    out.
    """
    root = Path(root)
    if not root.is_dir():
        raise UserError("no such folder", file=root)
    seen = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        seen.update(f"{os.path.relpath(folder, root)}\n".encode(errors="surrogateescape"))
        for name in sorted(names):
            if not name.startswith("."):
                try:
                    stat = os.stat(f"{folder}/{name}")
                    facts = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
                except FileNotFoundError:  # a broken link, or gone this instant: that is a state too
                    facts = f"{name}\0gone\n"
                seen.update(facts.encode(errors="surrogateescape"))
    return seen.hexdigest()


def versions() -> dict[str, str]:
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
