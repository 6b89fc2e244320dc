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
# # 01 · What is in the data
#
# Seventeen labels, from regions that fill half of every recording to findings that last four frames. Before any
# model: **which frames have labels, how uneven are they, and which studies may be compared with which?**
#
# Reads `DATA_ROOT` and `TEST_ROOT`; writes the frame index, the coverage report and the study splits to `RUN_DIR`.

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
MONTAGE = 6

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from rarevision import data, events, figures, training
from rarevision.files import atomic
from rarevision.labels import LABELS
from rarevision.run import start_stage

# %%
figures.style()
run = start_stage("01_eda_imbalance", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config

# %% [markdown]
# ## Which frames have labels?
#
# An image file and a row of a study's CSV belong together when the number in the file's name equals the CSV's
# `frame`. The column `index` only counts rows: on PillCam studies `frame = 5 * index`, so a join on `index` would
# keep one image in five and give most of those the label of another moment.

# %%
cache = run.path("index/source.parquet")  # reading 80 label files again is not needed while none changed
train, coverage = data.read_galar(run.data("root"), config.data.labels, config.data.missing_labels, cache)
test, test_coverage = data.read_test(run.data("test_root"))
pd.concat([coverage, test_coverage])

# %% [markdown]
# **Read it so:** `joined` should equal `on_disk` and `labelled`. `ratio`, frame / index, shows the trap: 5 on PillCam,
# 1 on Olympus. Partial copies of the data set are fine; what has no partner on the other side is counted, not guessed.

# %%
train.save(run.path("index/train.parquet"))
test.save(run.path("index/test.parquet"))
with atomic(run.path("coverage.csv")) as temporary:
    pd.concat([coverage, test_coverage]).to_csv(temporary)
print(f"{len(train):,} labelled frames in {len(train.studies)} studies")
print(f"{len(test):,} frames to predict in {len(test.studies)}")

# %% [markdown]
# ## How uneven are the labels?

# %%
counts = pd.Series(train.labels.sum(0, dtype=np.int64), index=LABELS)
ratio = counts.max() / max(counts.min(), 1)
figures.charts.bars(
    counts, f"The most frequent label has {ratio:,.0f} times the frames of the rarest", "frames (log)", log=True
)
plt.show()

# %%
shown = np.array([train.labels[train.rows(s)].any(0) for s in train.studies])  # [studies, 17]
present = pd.Series(shown.sum(0), index=LABELS)
figures.charts.bars(
    present, "Findings are absent from many studies", f"studies in which the label occurs, of {len(shown)}"
)
plt.show()
print(f"{1 - shown.mean():.1%} of all (study, label) pairs are absent")

# %% [markdown]
# That share matters more than any model. The challenge's metric gives a label that is absent from both truth and
# prediction an average precision of 1, so **an empty submission already scores the share of absent pairs**, and one
# false event on an absent label costs a whole point. Notebook 05 decides with that in mind.

# %% [markdown]
# ## Which labels come together?

# %%
figures.data.cooccurrence(train.labels, "Every frame has a region; findings sit on top of one")
plt.show()

# %% [markdown]
# ## How long does an event last?

# %%
spans = {name: [] for name in LABELS}
for study in train.studies:
    for i, name in enumerate(LABELS):
        found = events.runs(train.labels[train.rows(study), i] > 0)
        spans[name].extend(found[:, 1] - found[:, 0] + 1)
figures.data.durations(spans, "Regions fill the recording, findings last a few frames")
plt.show()

# %% [markdown]
# A median filter of 7 and a minimum of 3 frames, as published, erase part of what they should find: many findings are
# shorter than the filter. Durations learned from these timelines do better (notebook 05).

# %% [markdown]
# ## What do they look like?

# %%
rng = np.random.default_rng(config.train.seed)
source = data.open_reader(train, config.data, from_source=True)
picked = {name: rng.permutation(np.flatnonzero(train.labels[:, i]))[:MONTAGE] for i, name in enumerate(LABELS)}
figures.data.montage(picked, source, train, MONTAGE)
plt.show()

# %% [markdown]
# ## Three capsules, three looks
#
# Training shows PillCam and Olympus, the test set NaviCam. The mask around the image, the scale and the colours
# differ. `data.field_of_view = "crop"` cuts each study to its field; `data.harmonise = "colour"` maps the colours by a
# gain per channel and one gamma, measured over the whole study, and keeps one round field for all. The map is the
# study's, so two single frames need not look alike: the table compares whole studies.

# %%
treatments = {
    "as recorded": replace(config.data, field_of_view="full", harmonise="none"),
    "cut to its field": replace(config.data, field_of_view="crop", harmonise="none"),
    "colours harmonised": replace(config.data, field_of_view="crop", harmonise="colour"),
}
examples = [(index, index.studies[index.systems.index(s)]) for index in (train, test) for s in sorted({*index.systems})]
figures.data.systems(examples, treatments)
plt.show()

# %%
levels = {title: {} for title in treatments}
for index in (train, test):
    for system in sorted({*index.systems}):
        some = index.select([s for s, own in zip(index.studies, index.systems, strict=True) if own == system][:4])
        rows = np.linspace(0, len(some) - 1, 48).astype(int)
        for title, how in treatments.items():
            reader = data.open_reader(some, how, from_source=True)
            pixels = np.concatenate([reader.read(row)[::4, ::4].reshape(-1, 3) for row in rows])
            levels[title][system] = np.median(pixels[pixels.max(1) > 60], 0).round().astype(int).tolist()
pd.DataFrame(levels).rename_axis("median red, green, blue of what is lit")

# %% [markdown]
# ## What does augmentation do to a frame?

# %%
row = int(np.flatnonzero(train.labels[:, LABELS.index("small intestine")])[0])
picture = source.read(row)
for name in ("paper", "endoscopy"):
    varied = data.FrameDataset(train, source, 224, name, config.train.seed)
    variants = [varied[epoch, row][0].permute(1, 2, 0).numpy() for epoch in range(7)]
    title = f"Augmentation '{name}': one frame, as it is read and in seven epochs"
    figures.charts.images([picture, *variants], ["as read", *[f"epoch {e}" for e in range(7)]], 8, title, size=1.2)
    plt.show()

# %% [markdown]
# `paper` is the published set. `endoscopy` is ours: a capsule has no upright, so any rotation is real; colours vary as
# they do from system to system, but never to grey, because colour is the finding. The same seed, epoch and frame always
# give the same picture.

# %% [markdown]
# ## What does the sampler change?
#
# A frame is drawn with weight $1/\sqrt{f_c}$, where $f_c$ is the frequency of its rarest active label: rare labels
# are seen more often, without a handful of frames filling every batch as plain inverse frequency would.

# %%
share = {}
for kind in ("none", "sqrt", "inverse"):
    weight = training.frame_weights(train.labels, kind)
    share[kind] = 100 * weight @ train.labels / weight.sum()
figures.charts.bars(
    pd.DataFrame(share, index=LABELS), "Weighting lifts the rare labels", "% of drawn frames (log)", log=True
)
plt.show()

# %% [markdown]
# ## Which studies may be compared?
#
# A study is one patient, so it lies whole in one fold. Every number later on is out of fold: a study is scored by
# models that never saw it, with thresholds and decoders that never saw it either.

# %%
parts = data.Splits.make(train, config.split)
parts.save(run.path("splits.json"))
per_fold = pd.DataFrame.from_dict(parts.table(train), orient="index").add_prefix("fold ")
figures.charts.counts(per_fold, "Frames of each label in each fold: no fold should be without a rare label")
plt.show()

# %%
run.finish(
    [run.path(p) for p in ("index/train.parquet", "index/test.parquet", "coverage.csv", "splits.json")],
    summary={"training data": f"{len(train):,} frames, {len(train.studies)} studies, {parts.n_folds} folds"},
)
