# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Training, fold by fold, and honest scores
#
# Each fold's model learns from the other folds' studies; then every study is scored by the one model that never saw
# it. **Which labels does a frame classifier learn at all, and how sure can we be with so few studies?**
#
# Reads the frames, `splits.json` and the text embeddings; writes checkpoints to `RUN_DIR/folds`, scores to
# `RUN_DIR/probs`, known labels to `RUN_DIR/labels`. A run that was stopped goes on where it was; a fold that is
# finished is not trained again, so another `TEST_ROOT` costs only its prediction.

# %% [markdown]
# Parameters are strings; an empty one takes the config's value (`RUN_DIR`: `runs/<config name>`). `OVERRIDE` sets
# single config values, such as `["train.epochs=1"]`; `FORCE` redoes what is already finished.

# %% tags=["parameters"]
CONFIG = "configs/demo.toml"
DATA_ROOT = ""
TEST_ROOT = ""
RUN_DIR = ""
OVERRIDE = []
FORCE = False
ABLATION = ""  # results of the ablation; "" = runs/ablation, else the demo's as saved in docs

# %%
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from safetensors.torch import load_file

from rarevision import data, events, figures, read_events, scores, scoring, training
from rarevision.run import ablation_figure, ablation_summary, project_path, shown, start_stage

# %%
figures.style()
run = start_stage("03_training", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config
parts = data.Splits.load(run.need("splits.json", "01_eda_imbalance"))
text = load_file(run.need("model/text_embeddings.safetensors", "02_model_differential_attention"))["text"]

# %% [markdown]
# ## Frames, decoded once
#
# A 512 px PNG takes longer to decode than a small network needs to score it. Each is decoded once, resized with
# antialiasing and kept as a high-quality JPEG in one tar per study; the source files are never touched.

# %%
index = data.FrameIndex.load(run.need("index/train.parquet", "01_eda_imbalance"))
test, _ = data.read_test(run.data("test_root"))
test.save(run.path("index/test.parquet"))
train_frames, test_frames = data.open_reader(index, config.data), data.open_reader(test, config.data)
print(f"{len(index):,} frames to learn from, {len(test):,} to predict")

# %% [markdown]
# ## Learning

# %%
key = run.fingerprint("root")
history = training.train_folds(config, index, train_frames, parts, text, run.dir, key, FORCE)

# %%
figures.training.curves(
    history,
    {"loss": "training loss (smoothed, mixed)", "validation_loss": "validation loss", "ap": "mean AP on validation"},
    "fold",
    "Does it still learn, and does it still generalise?",
)
plt.show()

# %% [markdown]
# The two losses are not on one scale: the training loss is taken on mixed and smoothed labels. What counts is the
# right panel; the epoch with the best value is the one that predicts.
#
# ## Scores that no model has been trained for
#
# `probs/oof`: every training study, by the model of the fold it was left out of. `probs/test`: the mean over the
# folds' models.

# %%
found = training.predict_folds(config, index, train_frames, parts, run.dir, (test, test_frames))
pd.DataFrame(found).T[["frames", "bad_frames", "seconds"]]

# %% [markdown]
# ## What did it learn?
#
# Average precision per label over all out-of-fold frames, with 95 % intervals from drawing studies (not frames:
# frames of one study are near copies of each other). The grey mark is what guessing earns, the label's share of
# frames.

# %%
studies = scores.read_studies(run.path("probs/oof"), run.path("labels/oof"))
table = scoring.frame_table(studies)
figures.training.frame_aps(table, "Regions are learned; rare findings barely rise above chance")
plt.show()

# %%
table[["support", "studies", "baseline", "AP", "low", "high", "AUC", "F1", "precision", "recall", "note"]].round(3)

# %% [markdown]
# ## The same frames, another capsule
#
# Training shows two capsule systems, the test set a third. Where the truth of the test studies is known (the demo's
# is), the loss in average precision is what that shift costs.

# %%
truth = run.data("test_truth") if config.data.test_truth else None
for study, listed in read_events(truth).items() if truth else ():
    frame, _ = scores.read_probs(run.path(f"probs/test/{study}.npz"))
    scores.write_labels(run.path(f"labels/test/{study}.npz"), frame, events.to_labels(frame, listed))
if truth:
    shifted = scoring.frame_table(scores.read_studies(run.path("probs/test"), run.path("labels/test")))
    both = pd.DataFrame({"out of fold": table["AP"], "test system": shifted["AP"]})
    figures.charts.bars(both, "What another capsule system costs", "average precision")
    plt.show()

# %% [markdown]
# ## What is each part worth?
#
# One factor changed at a time against one base, over seeds that each train on another fold; read from saved runs of
# `rarevision ablate` (`ABLATION`). A circle is one seed's difference to the base of the same seed, the
# diamond their mean: circles on both sides of the line are no effect that so few seeds could show.

# %%
saved = [project_path(path) for path in (ABLATION, "runs/ablation/results.csv", "docs/ablation.csv") if path]
saved = next((path for path in saved if path.exists()), None)
if saved:
    trials = pd.read_csv(saved)
    print(f"{shown(saved)}: {len(trials)} trainings")
    ablation_figure(trials)
    plt.show()
    display(ablation_summary(trials).round(3))

# %%
written = [p for part in ("probs", "labels") for p in run.path(part).rglob("*.npz")]
rate = found["test"]["frames"] / max(found["test"]["seconds"], 1e-9)
run.finish(
    written,
    bad_frames={part: facts["bad_frames"] for part, facts in found.items()},
    summary={
        "mean AP, out of fold": f"{table['AP'].mean():.3f} over {table['AP'].notna().sum()} labels",
        "prediction": f"{rate:,.0f} frames/s",
    },
)
