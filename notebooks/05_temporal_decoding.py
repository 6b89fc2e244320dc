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
# # 05 · From scores to events, and the submission
#
# The challenge judges events, in the order they are listed, and pays one point for every label that is rightly left
# out. **Which events are worth listing?**
#
# Reads `probs/`, `labels/oof` and `thresholds.json`; writes the fitted decoder, the out-of-fold score and the
# validated submission.

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
SHOWN = 4  # test studies drawn
PICTURES = 16  # thumbnails per study, the surest events first

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd

from rarevision import data, decoding, figures, read_events, scores, scoring
from rarevision.files import write_json
from rarevision.labels import LABELS
from rarevision.run import project_path, shown, start_stage

# %%
figures.style()
run = start_stage("05_temporal_decoding", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config
run.need("thresholds.json", "04_threshold_tuning")
studies = scores.read_studies(run.path("probs/oof"), run.path("labels/oof"))
timelines = scores.read_timelines(run.path("labels/oof"))  # with those of studies that have no scores
truth = decoding.truth_events(studies)

# %% [markdown]
# ## Published decoder, ours, and silence
#
# Every study below is decoded by a decoder that never saw it: thresholds, calibration, durations and the decision to
# speak come from the other folds. The bar to clear is the empty submission.

# %%
methods = list(dict.fromkeys(["paper", config.decode.method]))
reports, expected = {}, {}
for method in methods:
    setting = replace(config, decode=replace(config.decode, method=method))
    _, reports[method], expected[method] = decoding.cross_validate(studies, setting, timelines)
reports["silence"] = scoring.score_events(truth, {study: [] for study in truth})

# %%
figures.scores.sources(reports, "Where the score comes from: most of it is credit for silence")
plt.show()

# %%
compared = {
    f"{m} − {o}": scoring.compare_reports(reports[m], reports[o]).loc[["score mAP@0.5", "present labels only mAP@0.5"]]
    for m, o in zip(reports, [*list(reports)[1:], "silence"], strict=True)
    if m != o
}
pd.concat(compared)

# %% [markdown]
# `low` and `high` are 95 % intervals from drawing studies. A difference is called real only when they exclude zero
# and there are enough studies to say so; a demo of nine studies rarely has.
#
# ## Label by label

# %%
best = reports[config.decode.method]
best.labels()

# %% [markdown]
# ## What a reader would get
#
# A physician asks other questions than the metric: how many findings are found, how many alarms are false, how much
# must be looked at?

# %%
pd.DataFrame({m: reports[m].reader("findings") for m in methods})

# %% [markdown]
# ## The decoder for the test set
#
# Fitted on all out-of-fold scores, saved with the hash of its data and the score to expect: the one above, from
# studies that it had not seen.

# %%
decoder = decoding.fit_decoder(studies, config, expected[config.decode.method], timelines)
decoder.save(run.path("decoder.json"))
tests = scores.read_studies(run.path("probs/test"))
found = {s.study: decoder.decode(s.frame, s.probs) for s in tests}
print("\n".join(f"{study}: {len(listed)} events" for study, listed in found.items()))

# %%
known = read_events(run.data("test_truth")) if config.data.test_truth else None
test_root = run.data("test_root")
source = data.read_test(test_root)[0] if test_root.exists() else None
for s in tests[:SHOWN]:
    figures.timelines.timeline(
        s, found[s.study], known and known[s.study], figures.timelines.thumbnails(s, found[s.study], source)
    )
    plt.show()
    if source is not None and s.study in source.studies and found[s.study]:
        figures.timelines.event_frames(s, found[s.study], source, known and known[s.study], PICTURES)
        plt.show()

# %% [markdown]
# The first ribbon is the capsule's way through the body: one path, in order, with its price for turning back. Below
# it, a lane for every label that is predicted or true. Under the axis, the frame in the middle of each event, the
# surest first: looking is the quickest way to find out what a decoder is wrong about.
#
# ## The submission
#
# Written only through the validator: exact study names, exact spelling, frames that exist, no event twice.

# %%
frame_numbers = (
    {s.study: s.frame for s in tests} if source is None else {s: source.frame[source.rows(s)] for s in source.studies}
)
target = project_path(config.submission.folder) / f"{config.submission.name}.json"
out_of_fold = dict(zip(best.names(), best.score, strict=True)) | {"empty": best.empty}
notes = {"config": config.as_dict(), "decoder": decoder.data_hash, "out of fold": out_of_fold}
scoring.write_submission(target, found, frame_numbers, notes)
print(f"{shown(target)}: {scoring.describe_submission(found)}")

# %% [markdown]
# ## Where it comes from
#
# Of the test studies' score, where their truth is known, else of the out-of-fold score that stands for it.

# %%
final = {"out of fold": best}
if known:
    final["test studies"] = scoring.score_events(known, found)
silent = {"test studies, silent": scoring.score_events(known, {study: [] for study in known})} if known else {}
figures.scores.sources(final | silent, "The final score, and what it is made of")
plt.show()

# %%
last = final["test studies"] if known else best
figures.charts.counts(
    pd.DataFrame({s.study: pd.Series([e.labels[0] for e in found[s.study]]).value_counts() for s in tests[:20]})
    .reindex(LABELS, fill_value=0)
    .fillna(0)
    .astype(int),
    "Events listed per label and test study",
)
plt.show()
last.labels()

# %%
table = {}
for name, report in final.items():
    for measure, value in zip(report.names(), report.score, strict=True):
        table[f"{measure}, {name}"] = f"{value:.4f}   (silence {report.empty:.4f})"
write_json(run.path("scores.json"), {m: r.as_dict() for m, r in reports.items()})
pd.Series(table).to_frame("score")

# %%
run.finish(
    [run.path("decoder.json"), run.path("scores.json"), target],
    summary=table | {"submission": shown(target)},
)
