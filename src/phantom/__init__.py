"""The rendered demo data set and the tiny twin of BiomedCLIP. Nothing of the method depends on it.

write_phantom   render training and test studies in the data set's own layouts, with their truth
plan            which studies that will be
write_study     render one of them
Journey         one capsule's way through a rendered body, frame by frame
SYSTEMS         the three capsule systems it can be recorded by
build_twin      write a small model in the hub's layout of BiomedCLIP
"""

from phantom.capsule import Journey
from phantom.lens import SYSTEMS
from phantom.studies import plan, write_phantom, write_study
from phantom.twin import build_twin

__all__ = [
    "SYSTEMS",
    "Journey",
    "build_twin",
    "plan",
    "write_phantom",
    "write_study",
]
