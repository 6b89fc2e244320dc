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
# # 02 · The model: BiomedCLIP with differential attention
#
# BiomedCLIP learned from 15 million biomedical figures. The method replaces the attention in each of its blocks by a
# difference of two attention maps. **What does that do to what was learned, before any training?**
#
# Reads the model folder and a few frames; writes the text embeddings of the 17 labels to `RUN_DIR/model`.

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
SHOWN = 4

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file

from rarevision import data, figures, model
from rarevision.files import atomic, write_json
from rarevision.labels import LABELS
from rarevision.model import comparison
from rarevision.run import start_stage

# %%
figures.style()
run = start_stage("02_model_differential_attention", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config
index = data.FrameIndex.load(run.need("index/train.parquet", "01_eda_imbalance"))

# %% [markdown]
# ## One sentence per label
#
# The contrastive head compares an image with 17 frozen sentences. The text tower writes them once, in evaluation mode
# (with dropout left on, as the loader hands it over, they would differ from call to call), and is then dropped: it is
# in no optimizer, average or checkpoint. A trunk without a text tower (`model.source = ""`) has no contrastive head.

# %%
text = model.text_embeddings(config.model)
with atomic(run.path("model/text_embeddings.safetensors")) as temporary:
    save_file({"text": text}, temporary)
print(config.model.prompt.format(label=LABELS[-1]) if text.numel() else "No text tower, so no contrastive head.")

# %%
if text.numel():
    alike = (text @ text.T).numpy()
    apart = alike[~np.eye(17, dtype=bool)]
    _, ax = plt.subplots(figsize=(6.2, 5))
    image = ax.imshow(alike, cmap="cividis")
    ax.set_xticks(range(17), LABELS, rotation=60, ha="right")
    ax.set_yticks(range(17), LABELS)
    ax.set_title(f"To the text tower, two labels are {apart.min():.2f} to {apart.max():.2f} alike", x=-0.4)
    plt.colorbar(image, label="cosine")
    plt.show()

# %% [markdown]
# ## Five forms of attention
#
# | form | output of the heads |
# |---|---|
# | `plain` | $A V$: softmax attention, the ablation that every claim is held against |
# | `published` | what the released code computes, $[x_1 - \lambda x_2,\ x_2]$ with $x = AV$ |
# | `paper` | $(A_1 - \lambda A_2) V$: what the report says; the heads in two groups |
# | `difftransformer` | the same with RMS norm and a schedule by depth (arXiv 2410.05258, timm's layer) |
# | `preserve` | $(A_1 - \lambda A_2) V / (1 - \lambda)$: all heads kept, the second query starts as a copy |
#
# Each takes over the same pretrained weights. Features after each block, compared with the plain model's by cosine,
# say how much of the pretrained function survives the surgery. (The demo's model folder is a small twin whose weights
# are random: it shows the mechanism. With BiomedCLIP in its place, the same cells show what is lost.)

# %%
plain = model.build_model(replace(config.model, attention="plain"), text, index.labels.mean(0)).eval()
first = [int(np.flatnonzero(index.labels[:, i])[0]) for i in range(17) if index.labels[:, i].any()]
dataset = data.FrameDataset(index, data.open_reader(index, config.data, from_source=True), plain.image_size)
images = torch.stack([dataset[row][0] for row in first])
normal = plain.normalise(images)
if "trunk_weights" in plain.recipe:
    print(plain.recipe["trunk_weights"])
forms, refused = comparison.fitting_forms(plain.trunk)
for name, reason in refused.items():
    print(f"{name} cannot be shown for this trunk: {reason}")

# %%
table = comparison.feature_drift(plain.trunk, normal)
agreement = table[table.place == "features"].set_index("variant")[["cosine", "difference"]]
kept = [name for name, value in agreement.cosine.items() if value > 0.9999 and name != "plain"]
figures.model.drift(table, f"Of all forms, {' and '.join(kept) or 'none'} alone starts where pretraining ended")
plt.show()
agreement.style.format({"cosine": "{:.4f}", "difference": "{:.1e}"})

# %% [markdown]
# `preserve` starts as exactly the pretrained function, and both of its queries can learn from there. Every other form
# starts from something else: what the pretraining knew has to be found again during fine-tuning.

# %% [markdown]
# ## Is anything subtracted? The folding proof
#
# Write the output matrix as $[W_1\ W_2]$. Then $W_1 (x_1 - \lambda x_2) + W_2 x_2 = W_1 x_1 + (W_2 - \lambda W_1) x_2$:
# the `published` form **is** plain attention with another output matrix, for any $\lambda$. In double precision, the
# folded plain model gives the same features after every block:

# %%
if "published" in forms:
    folded = comparison.folding_error(plain.trunk, normal)
    unfolded = table[table.variant == "published"].difference.min()
    print(f"published against folded plain, {len(folded)} places: {folded.difference.max():.0e} at most (relative)")
    print(f"published against plain as it was: {unfolded:.2f} at least")

# %% [markdown]
# ## Two maps and their difference
#
# Where does the class token look, in the first branch, in the second, and after subtraction? Drawn for one pair of
# heads in the last block of `paper`, on frames of the training studies and of the test studies: in the demo both are
# rendered, the second by other optics than any in training; with `DATA_ROOT` and `TEST_ROOT` they are real.
# The difference has negative weights, which no softmax has.


# %%
def spread(source, rows):
    """SHOWN of the rows, evenly spread, as the model gets them."""
    chosen = np.asarray(rows)[((np.arange(SHOWN) + 0.5) / SHOWN * len(rows)).astype(int)]
    shown = data.FrameDataset(source, data.open_reader(source, config.data, from_source=True), plain.image_size)
    return torch.stack([shown[int(row)][0] for row in chosen])


test = data.FrameIndex.load(run.need("index/test.parquet", "01_eda_imbalance"))
pictures = {"training": spread(index, first), "test": spread(test, range(len(test)))}


# %%
def show(form, message):
    trunk = comparison.with_attention(plain.trunk, form)
    for name, some in pictures.items():
        maps = comparison.attention_maps(trunk, plain.normalise(some))[-1]
        negative = (maps.difference < 0).float().mean()
        title = f"{form}, {name} frames: {message}, {negative:.0%} of all weights below 0"
        figures.model.attention(some, maps, title, plain.trunk.num_prefix_tokens)
        plt.show()


if "paper, halves" in forms:
    show("paper, halves", "two heads look apart")

# %%
if "preserve" in forms:
    show("preserve", "at the start both maps are one")

# %% [markdown]
# At the start, `preserve` subtracts a map from itself: nothing is lost, and nothing gained. What training makes of it
# is what notebook 03 and the ablation measure.

# %% [markdown]
# ## Lambda, layer by layer

# %%
lambdas = {
    n: comparison.strengths(comparison.with_attention(plain.trunk, n)).mean(1).tolist() for n in forms if n != "plain"
}
if lambdas:
    drawn = pd.DataFrame({n: v for n, v in lambdas.items() if n != "paper, adjacent"})  # the same as halves
    drawn.index = pd.RangeIndex(1, len(drawn) + 1, name="block")
    ax = drawn.rename(columns={"paper, halves": "paper"}).plot(style=["s-", "o:", "^-", "D-"], figsize=(7.5, 3))
    ax.set(title="Lambda at the start: near lambda_init, or rising with depth", ylabel="lambda (mean over heads)")
    ax.set_xticks(drawn.index)
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.show()

# %% [markdown]
# ## What does each form cost?

# %%
cost = comparison.attention_cost(plain.trunk, plain.image_size).set_index("variant")
cost.style.format({c: "{:.2f}" if "plain" in c else "{:,.0f}" for c in cost})

# %% [markdown]
# Multiply-adds are counted, not timed; `benchmarks/attention.py` times every form, fused and written out.

# %%
report = {"cosine": agreement.cosine.to_dict(), "lambda": lambdas, "source": config.model.source}
write_json(run.path("model/report.json"), report)
run.finish(
    [run.path("model/text_embeddings.safetensors"), run.path("model/report.json")],
    summary={"model": f"{config.model.source}, attention {config.model.attention}, {plain.image_size} px"},
)
