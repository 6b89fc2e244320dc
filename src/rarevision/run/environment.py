"""The environment: does the running Python have every pinned package, and this checkout of the project?

Standard library only, so that it can be asked before anything is installed:
    python3 src/rarevision/run/environment.py requirements.txt
prints the first difference and exits 1, or prints nothing and exits 0.
"""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

OLDEST = (3, 11)


def difference(requirements: Path) -> str:
    """Empty when every `name==version` line is met and `-e .` points at this checkout, else the first difference."""
    if sys.version_info < OLDEST:
        return f"Python {sys.version.split()[0]} is older than {'.'.join(map(str, OLDEST))}"
    for line in requirements.read_text().splitlines():
        name, pinned, version = line.partition("#")[0].strip().partition("==")
        if not pinned:
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed"
        if found.split("+")[0] != version:  # 2.14.1+cpu is 2.14.1 built for the CPU
            return f"{name} is {found}, not {version}"
    spec = importlib.util.find_spec("rarevision")
    here = Path(__file__).resolve()
    if spec is None or spec.origin is None or Path(spec.origin).resolve().parent != here.parents[1]:
        return "the package rarevision is not installed from this folder"
    return ""


if __name__ == "__main__":
    if message := difference(Path(sys.argv[1])):
        print(message)
        sys.exit(1)
