"""The rendered demo data set and the tiny twin of BiomedCLIP."""

from phantom.capsule import Journey
from phantom.studies import plan, write_phantom, write_study
from phantom.twin import build_twin

__all__ = [
    "Journey",
    "build_twin",
    "plan",
    "write_phantom",
    "write_study",
]
