"""What all tests share."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("project", deadline=None)  # a busy machine is slow, not wrong
settings.load_profile("project")

NOBODY = 65534


@pytest.fixture
def forbidding() -> Iterator[Path]:
    """A folder in which permissions count: root, who may read everything, is somebody else until the test ends."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        if root:
            os.chown(folder, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)
