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
# # 04 · What the metric pays, and where thresholds lose
#
# A frame is scored; the challenge judges events. Between them lies a decision, and the metric has a taste: it pays a
# full point for every label that is rightly left out of a study. **What does silence earn, where should each label's
# threshold lie, and can any threshold beat silence?**
#
# Reads `probs/oof` and `labels/oof`, nothing else: scores of any other model can be put there and run from here on.
# Writes `thresholds.json`.

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

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from rarevision import decoding, figures, scores, scoring
from rarevision.files import write_json
from rarevision.labels import LABELS
from rarevision.run import start_stage

# %%
figures.style()
run = start_stage("04_threshold_tuning", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config
run.need("probs/oof", "03_training")
studies = scores.read_studies(run.path("probs/oof"), run.path("labels/oof"))
truth = decoding.truth_events(studies)
probs, labels = np.concatenate([s.probs for s in studies]), np.concatenate([s.labels for s in studies])

# %% [markdown]
# ## What silence earns
#
# The score is a mean over studies and all 17 labels. A label that neither truth nor prediction has counts as average
# precision 1. So an empty file earns, for each label, the share of studies that do not show it.

# %%
silence = scoring.score_events(truth, {study: [] for study in truth})
absent = pd.Series(1 - silence.present.mean(0), index=LABELS)
figures.charts.bars(
    absent,
    f"An empty submission scores {silence.empty:.3f}: a point for every absent label",
    "share of studies without the label = what silence earns",
)
plt.show()

# %% [markdown]
# To speak pays only where a label is likely to be there *and* its events are likely to be hit. One false event on an
# absent label costs its whole point, whatever its length.
#
# ## How well do scores separate?

# %%
figures.scores.precision_recall(probs, labels, "Precision against recall, out of fold (dot: the threshold of best F1)")
plt.show()

# %% [markdown]
# A curve that hugs the left axis belongs to a label that no threshold can rescue.
#
# ## Three ways to choose
#
# `paper`: the published grid, best F1 over frames. `f1`: the exact best F1. `event`: the threshold whose cleaned
# events earn most in the challenge's metric; where nothing earns more than silence, it is never reached.

# %%
methods = ("paper", "f1", "event")
fits = {m: decoding.fit_thresholds(studies, replace(config.threshold, method=m), config.decode) for m in methods}
table = pd.DataFrame({m: np.where(f.values > 1, np.nan, f.values) for m, f in fits.items()}, index=LABELS)
table.style.format("{:.2f}", na_rep="never")

# %%
chosen = fits[config.threshold.method]
for name, note in chosen.notes.items():
    print(f"{name}: {note}")

# %% [markdown]
# ## Can a threshold be trusted?
#
# Fitted again without each group of studies, a threshold that is a property of the label stays where it is. One that
# moves across the axis is a property of the few studies that show the label.

# %%
spread = decoding.threshold_spread(studies, config)
figures.scores.thresholds(
    spread,
    chosen.values,
    f"Threshold '{config.threshold.method}' fitted on all studies (bar) and without each group (dots)",
)
plt.show()

# %% [markdown]
# ## Why F1 thresholds lose
#
# Every study below is decoded as published (threshold, median, gaps, minimum length), with thresholds fitted on the
# other studies. The dashed line is the empty submission.

# %%
published = replace(config, decode=replace(config.decode, method="paper", compose="label_set"))
reports = {"silence": silence}
for method in methods:
    setting = replace(published, threshold=replace(config.threshold, method=method))
    _, reports[method], _ = decoding.cross_validate(studies, setting)
figures.scores.sources(reports, "What thresholds earn on present labels, they pay for with the credit for absent ones")
plt.show()

# %% [markdown]
# The same trade, label by label for `f1` at tIoU 0.5: what was earned on studies that show the label (right), and what
# was lost on studies that do not (left). The best threshold for frames is not a good one for events: it must find some
# frames of a rare label, and does so in studies that have none.

# %%
figures.scores.trade(reports["f1"], "F1 thresholds earn {earned} and lose {lost} of silence's {empty}")
plt.show()

# %% [markdown]
# ## What each step of our decoder adds
#
# One path through the regions; landmarks and findings as chains that know how long events last; silence where more is
# expected of it; the surest event first; doubtful events further down the ranking, where they cannot hurt; events cut
# where the label set changes, as the truth is. Each bar is out of fold and contains the steps above it.

# %%
fitted = decoding.waterfall_fits(studies, config, scores.read_timelines(run.path("labels/oof")))
steps = {name: scoring.score_events(truth, found) for name, found in decoding.waterfall_steps(fitted).items()}
figures.scores.waterfall(steps, "Step by step: in the end {gain} against silence")
plt.show()

# %% [markdown]
# Read the steps as a path, not as independent merits. To speak about everything that is proposed costs the credit for
# absent labels; the decision to be silent again, label by label and study by study, brings it back.
#
# ## Does a probability mean what it says?
#
# Deciding by expected gain needs probabilities. A network's score is not one: the sampler lifts rare labels, the loss
# pushes easy negatives down. The decoder turns scores into the probability that a frame shows a label, given the whole
# study. On the diagonal, of the frames that are given 30 %, 30 % show the label.

# %%
after = decoding.waterfall_probabilities(fitted)
stated = {"scores": probs, "decoder's probabilities": np.concatenate([after[s.study] for s in studies])}
figures.scores.reliability(labels, stated, "Reliability, out of fold, before and after calibration")
plt.show()

# %%
write_json(
    run.path("thresholds.json"),
    {
        "method": config.threshold.method,
        "values": dict(zip(LABELS, map(float, chosen.values), strict=True)),
        "notes": chosen.notes,
        "spread": spread,
        "studies": [s.study for s in studies],
    },
)
run.finish([run.path("thresholds.json")])
