"""The rendered demo data set and the tiny twin of BiomedCLIP. Nothing of the method depends on it.

In goes a seed; out come capsule studies that look and are labelled like Galar's, in the same files, so that the whole
chain runs on any machine without patients' data or a large model. A study's way: `studies` plans it, `timelines` draws
its labels, `capsule` renders its frames (`motion` moves the camera, `tube` is the gut before it, with its `walls` and
`lesions`, `lens` the optics), and `dataset` writes it. Begin with `write_phantom`.

write_phantom   render training and test studies in the data set's own layouts, with their truth
plan            which studies that will be
write_study     render one of them
Journey         one capsule's way through a rendered body, frame by frame
SYSTEMS         the three capsule systems that a journey can be recorded by
build_twin      write a small model in the hub's layout of BiomedCLIP
"""

from phantom.capsule import Journey
from phantom.dataset import write_phantom, write_study
from phantom.lens import SYSTEMS
from phantom.studies import plan
from phantom.twin import build_twin

__all__ = [
    "SYSTEMS",
    "Journey",
    "build_twin",
    "plan",
    "write_phantom",
    "write_study",
]
