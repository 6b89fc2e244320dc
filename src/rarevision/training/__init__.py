"""Folds trained and resumed, and the scores of whole studies."""

from rarevision.training.folds import train_fold, train_folds, train_in_run
from rarevision.training.forward import Batches, loader, mixed_precision, score_batches
from rarevision.training.predict import load_model, predict_folds, predict_in_run, predict_studies
from rarevision.training.sampling import frame_weights

__all__ = [
    "Batches",
    "frame_weights",
    "load_model",
    "loader",
    "mixed_precision",
    "predict_folds",
    "predict_in_run",
    "predict_studies",
    "score_batches",
    "train_fold",
    "train_folds",
    "train_in_run",
]
