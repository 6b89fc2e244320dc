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

from rarevision import attention, drift, frames, galar, model, pipeline, plots, weights
from rarevision.labels import LABELS
from rarevision.stage import atomic, write_json

plots.style()
run = pipeline.start("02_model_differential_attention", CONFIG, DATA_ROOT, TEST_ROOT, RUN_DIR, OVERRIDE)
config = run.config
index = galar.FrameIndex.load(run.need("index/train.parquet", "01_eda_imbalance"))

# %% [markdown]
# ## One sentence per label
#
# The contrastive head compares an image with 17 frozen sentences. The text tower writes them once, in evaluation mode
# (with dropout left on, as the loader hands it over, they would differ from call to call), and is then dropped: it is
# in no optimizer, average or checkpoint.

# %%
clip, folder = weights.load(config.model)
text = model.encode(clip, folder, config.model)
with atomic(run.path("model/text_embeddings.safetensors")) as temporary:
    save_file({"text": text}, temporary)
print(config.model.prompt.format(label=LABELS[-1]))

# %%
_, ax = plt.subplots(figsize=(6.2, 5))
image = ax.imshow((text @ text.T).numpy(), cmap="cividis")
ax.set_xticks(range(17), LABELS, rotation=60, ha="right")
ax.set_yticks(range(17), LABELS)
ax.set_title("How alike the text tower finds the 17 sentences")
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
# say how much of the pretrained function survives the surgery.

# %%
plain = model.build(replace(config.model, attention="plain"), text, index.labels.mean(0)).eval()
first = [int(np.flatnonzero(index.labels[:, i])[0]) for i in range(17) if index.labels[:, i].any()]
dataset = frames.FrameDataset(index, frames.Plain(index, config.data), plain.image_size)
images = torch.stack([dataset[row][0] for row in first])
normal = plain.normalise(images)

# %%
table = drift.drift(plain.trunk, normal)
plots.drift(table, "What is left of the pretrained features after each block, before any training")
plt.show()
agreement = table[table.place == "features"].set_index("variant")[["cosine", "difference"]]
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
folded = drift.folding(plain.trunk, normal)
print(f"largest relative difference over {len(folded)} places: {folded.difference.max():.0e}")

# %% [markdown]
# ## Two maps and their difference
#
# Where does the class token look, in the first branch, in the second, and after subtraction? Drawn for one pair of
# heads in the last block of `paper`. The difference has negative weights, which no softmax has.

# %%
paper_maps = attention.attention_maps(drift.variant(plain.trunk, "paper, halves"), normal[:SHOWN])
plots.attention(
    images[:SHOWN], paper_maps[-1], "paper: two maps, and what is left after subtracting one from the other"
)
plt.show()
print(f"share of negative weights: {(paper_maps[-1].difference < 0).float().mean():.0%}")

# %%
kept = attention.attention_maps(drift.variant(plain.trunk, "preserve"), normal[:SHOWN])
plots.attention(images[:SHOWN], kept[-1], "preserve: at the start both maps are the same, so nothing is lost")
plt.show()

# %% [markdown]
# ## Lambda, layer by layer

# %%
lambdas = {
    n: attention.strengths(drift.variant(plain.trunk, n)).mean(1).tolist() for n in drift.VARIANTS if n != "plain"
}
depth = pd.RangeIndex(1, len(kept) + 1, name="block")
ax = pd.DataFrame(lambdas, index=depth).plot(style=["s--", "o--", "v--", "^-", "D-"], figsize=(7, 3))
ax.set(title="Lambda at the start: a constant, or a schedule by depth", ylabel="lambda (mean over heads)", xticks=depth)
plt.show()

# %% [markdown]
# ## What does each form cost?

# %%
cost = drift.cost(plain.trunk, plain.image_size).set_index("variant")
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
