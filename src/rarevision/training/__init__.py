"""Folds trained and resumed, and the scores of whole studies.

In come an index, a reader, splits and settings; out come checkpoints in `RUN_DIR/folds` and scores in `RUN_DIR/probs`.
Begin with `train_folds`, then `predict_folds`; folds.py holds both, and is the file to read first. Below it, `fold`
trains epochs of steps: `sampling` draws frames, `learner` takes a step and `ema` averages the weights, `metrics` are
logged, `checkpoint` keeps all of it. `predict` writes scores. `forward` decodes frames and runs models for both, and
`launch` starts processes.

train_folds        train every fold of a run, here or in processes of their own
train_fold         train, resume or skip one fold
train_in_run       the same from what a run's folder holds, for a launched process
predict_folds      all scores of a run
predict_studies    scores of chosen studies by given models
predict_in_run     all scores, from what a run's folder holds
load_model         a fold's averaged model from its checkpoint
score_batches      run models over batches of frames
loader             batches decoded ahead of the model
frame_weights      sampling weight of every frame
"""

from rarevision.training.folds import predict_folds, predict_in_run, train_fold, train_folds, train_in_run
from rarevision.training.forward import loader, score_batches
from rarevision.training.predict import load_model, predict_studies
from rarevision.training.sampling import frame_weights

__all__ = [
    "frame_weights",
    "load_model",
    "loader",
    "predict_folds",
    "predict_in_run",
    "predict_studies",
    "score_batches",
    "train_fold",
    "train_folds",
    "train_in_run",
]
