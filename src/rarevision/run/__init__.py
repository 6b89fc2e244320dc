"""Stages, manifests and ablations."""

from rarevision.run.ablate import ablation_figure, ablation_summary
from rarevision.run.pipeline import project_path, shown, start_stage

__all__ = [
    "ablation_figure",
    "ablation_summary",
    "project_path",
    "shown",
    "start_stage",
]
