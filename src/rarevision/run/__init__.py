"""Stages, their manifests, and ablations: what ties the packages to a run.

A run lies in a folder, RUN_DIR. Each stage is a notebook that begins with `start_stage` and ends with `run.finish`; an
unchanged stage is skipped: that is `pipeline`'s part. The command `rarevision` is in `command`.

start_stage        open a stage from a notebook's parameters
project_path       a path relative to the project folder
shown              a path as people should see it
ablation_summary   mean and spread of each variant, and its difference to the base
ablation_figure    the same as a picture
"""

from rarevision.run.ablate import ablation_figure, ablation_summary
from rarevision.run.notebook import project_path, shown, start_stage

__all__ = [
    "ablation_figure",
    "ablation_summary",
    "project_path",
    "shown",
    "start_stage",
]
