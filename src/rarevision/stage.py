"""A stage: files in, files out, and a manifest written last, so that a crash resumes and an unchanged stage is skipped.

A manifest records what a stage was made from (`key`: hashes of its inputs, its part of the configuration, its code) and
what it made (outputs with their hashes, versions, seconds, notes). A stage is current when its manifest exists, the key
computed now equals the recorded one, and every output is still there with the recorded size.
"""

import ast
import functools
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rarevision.files import digest, sha256, versions, write_json

SOURCE = Path(__file__).parents[1]  # the folder that holds the project's packages
FIGURES = SOURCE / "rarevision" / "figures"


def _file(module: str) -> Path | None:
    """The file of a dotted module name of this project: a package's is its `__init__.py`."""
    path = SOURCE / module.replace(".", "/")
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.exists() else None


def _definition(module: str, name: str, used: Callable[[], set[str]]) -> set[Path]:
    """Files that `from module import name` leads to.

    A package's `__init__` only hands names on, so a name is followed through it to the module that defines it. Where
    `name` is itself a package, `used()` are the names that are taken from it.
    """
    below = _file(f"{module}.{name}")
    if below is not None:
        inner = f"{module}.{name}"
        return {below} if below.name != "__init__.py" else set().union(*(_definition(inner, n, set) for n in used()))
    door = _file(module)
    if door is None or door.name != "__init__.py":
        return set() if door is None else {door}
    for node in ast.walk(ast.parse(door.read_text())):
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            (original,) = (alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return _definition(node.module or "", original, used)
    return {door}


def _reached(source: Path) -> set[Path]:
    """Files of this project that one file takes names from, figures left out."""
    tree, found = ast.parse(source.read_text()), set()
    nodes = list(ast.walk(tree))

    def attributes(owner: str) -> set[str]:
        return {n.attr for n in nodes if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == owner}

    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                used = functools.partial(attributes, alias.asname or alias.name)
                found |= _definition(node.module or "", alias.name, used)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                for name in attributes(alias.asname or alias.name):
                    found |= _definition(alias.name, name, set) if _file(alias.name) else set()
    return {path for path in found if FIGURES not in path.parents}


def code_hash(source: str | Path) -> str:
    """Hash of a Python file and of every file of this project that its imports lead to, and of nothing else.

    Figures cannot change a result: they are left out, so that a better picture never costs a training.
    """
    reached: set[Path] = set()
    todo = {Path(source)}
    while todo:
        path = todo.pop()
        reached.add(path)
        todo |= _reached(path) - reached
    reached.discard(Path(source))
    return digest([sha256(source), sorted((p.relative_to(SOURCE).as_posix(), sha256(p)) for p in reached)])


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
