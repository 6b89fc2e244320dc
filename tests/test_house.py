"""The house: imports run one way and through the doors, and the tree is as formatter and linter want it."""

import importlib
import subprocess
import sysconfig
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PACKAGES = ["scoring", "data", "model", "training", "decoding", "figures", "run"]
DOORS = ["rarevision", "phantom", *(f"rarevision.{name}" for name in PACKAGES)]


@pytest.mark.parametrize("command", ["lint-imports", "ruff check", "ruff format --check", "mypy"])
def test_the_tools_find_nothing(command):
    tool, *arguments = command.split()
    program = Path(sysconfig.get_path("scripts")) / tool
    done = subprocess.run([program, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", DOORS)
def test_a_door_opens_and_gives_what_it_names(name):
    door = importlib.import_module(name)
    for public in door.__all__:
        assert hasattr(door, public), f"{name} names {public}, which it does not have"
        assert f"\n{public} " in door.__doc__, f"help({name}) has no line on {public}"
