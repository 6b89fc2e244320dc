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
# # 04 · From scores to decisions: thresholds
#
# A score of 0.3 may be certain for a rare label and nothing for a frequent one. **Where should each label's threshold
# lie, and how much does it depend on which studies it was fitted on?**
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

from rarevision import pipeline, plots, scores, thresholds
from rarevision.labels import LABELS
from rarevision.stage import write_json

plots.style()
run = pipeline.start("04_threshold_tuning", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config
run.need("probs/oof", "03_training")
studies = scores.read_studies(run.path("probs/oof"), run.path("labels/oof"))
probs, labels = np.concatenate([s.probs for s in studies]), np.concatenate([s.labels for s in studies])

# %% [markdown]
# ## How well do scores separate?

# %%
plots.precision_recall(probs, labels, "Precision against recall, out of fold (dot: the threshold of best F1)")
plt.show()

# %% [markdown]
# A curve that hugs the left axis belongs to a label that no threshold can rescue. For those, notebook 05's decoder
# will have to decide whether to speak at all.
#
# ## Three ways to choose
#
# `paper`: the published grid, best F1 over frames. `f1`: the exact best F1. `event`: the threshold whose cleaned
# events earn most in the challenge's metric; where nothing earns more than silence, it is never reached.

# %%
fits = {
    m: thresholds.fit(studies, replace(config.threshold, method=m), config.decode) for m in ("paper", "f1", "event")
}
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
folds = {s.study: i % config.decode.folds for i, s in enumerate(studies)}
spread = thresholds.spread(studies, config.threshold, folds, config.decode)
plots.ranges(
    spread,
    chosen.values,
    f"Threshold '{config.threshold.method}' fitted on all studies (bar) and without each group (dots)",
)
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
