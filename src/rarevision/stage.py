"""A stage: files in, files out, and a manifest written last, so that a crash resumes and an unchanged stage is skipped.

A manifest records what a stage was made from (`key`: hashes of its inputs, its part of the configuration, its code) and
what it made (outputs with their hashes, versions, seconds, notes). A stage is current when its manifest exists, the key
computed now equals the recorded one, and every output is still there with the recorded size.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
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


def sha256(path: str | Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Hash of anything JSON can hold, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _imports(source: Path) -> set[str]:
    """Names of this package's modules that a Python file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rarevision":
            names.update([node.module.split(".")[1]] if "." in node.module else (alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            names.update(a.name.split(".")[1] for a in node.names if a.name.startswith("rarevision."))
    return {name for name in names if (PACKAGE / f"{name}.py").exists()}


def code_hash(source: str | Path) -> str:
    """Hash of a Python file and of every module of this package it reaches by import, and of nothing else.

    Figures cannot change a result: `plots` and `score_plots` are left out, so a better picture never costs a training.
    """
    source = Path(source)
    reached, todo = {}, _imports(source)
    while todo:
        name = todo.pop()
        if name in reached or name in ("plots", "score_plots"):
            continue
        reached[name] = sha256(PACKAGE / f"{name}.py")
        todo |= _imports(PACKAGE / f"{name}.py")
    return digest([sha256(source), sorted(reached.items())])


def versions() -> dict[str, str]:
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class Stage:
    """One stage of a run: `Stage(run_dir, "03_training", key).current()`, work, then `.finish(outputs)`."""

    def __init__(self, run_dir: str | Path, name: str, key: dict[str, Any]):
        self.run_dir, self.name = Path(run_dir), name
        self.key = json.loads(json.dumps(key, sort_keys=True, default=str))
        self.started = time.time()

    @property
    def path(self) -> Path:
        return self.run_dir / "manifests" / f"{self.name}.json"

    def manifest(self) -> dict[str, Any] | None:
        try:
            return json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError:
            return None  # torn by something other than us; the stage runs again

    def why_not_current(self) -> str:
        """Empty when the stage can be skipped, else the first reason it cannot."""
        manifest = self.manifest()
        if manifest is None:
            return "no manifest"
        changed = [
            k for k in sorted(self.key.keys() | manifest["key"].keys()) if self.key.get(k) != manifest["key"].get(k)
        ]
        if changed:
            return f"changed: {', '.join(changed)}"
        for name, facts in manifest["outputs"].items():
            path = self.run_dir / name
            if not path.exists() or path.stat().st_size != facts["bytes"]:
                return f"output {name} is missing or changed"
        return ""

    def current(self) -> bool:
        return not self.why_not_current()

    def finish(self, outputs: Iterable[str | Path] = (), **notes: Any) -> Path:
        """Write the manifest; `outputs` are files that now exist, `notes` any JSON facts worth keeping."""
        facts = {}
        for output in sorted(map(Path, outputs)):
            facts[os.path.relpath(output, self.run_dir)] = {"sha256": sha256(output), "bytes": output.stat().st_size}
        write_json(
            self.path,
            {
                "stage": self.name,
                "key": self.key,
                "outputs": facts,
                "seconds": round(time.time() - self.started, 2),
                "versions": versions(),
                "notes": notes,
            },
        )
        return self.path
