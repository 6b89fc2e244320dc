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
REPEATS = 5

# %%
import copy
import time
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from rarevision import attention, frames, galar, model, pipeline, plots, weights
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
first = [int(np.flatnonzero(index.labels[:, i])[0]) for i in range(17) if index.labels[:, i].any()]
prevalence = index.labels.mean(0)
built = {}
for form in attention.FORMS:
    torch.manual_seed(0)
    strength = min(config.model.lambda_init, 0.5) if form == "preserve" else 0.8
    built[form] = model.build(replace(config.model, attention=form, lambda_init=strength), text, prevalence).eval()
size = built["plain"].image_size
dataset = frames.FrameDataset(index, frames.Plain(index, config.data), size)
images = torch.stack([dataset[row][0] for row in first])
normal = (images.float() / 255 - built["plain"].mean) / built["plain"].std

# %%
with torch.no_grad():
    blocks = {
        form: m.trunk.forward_intermediates(normal, intermediates_only=True, output_fmt="NLC")
        for form, m in built.items()
    }
cosine = pd.DataFrame(
    {
        form: [F.cosine_similarity(a, b, -1).mean().item() for a, b in zip(found, blocks["plain"], strict=True)]
        for form, found in blocks.items()
    }
)
cosine.index = pd.RangeIndex(1, len(cosine) + 1, name="block")
ax = cosine.plot(
    style=["k-", "s--", "o--", "^--", "D-"],
    figsize=(7, 3.4),
    title="What is left of the pretrained features after each block",
)
ax.set(ylabel="cosine to plain", xticks=cosine.index)
plt.show()

# %%
with torch.no_grad():
    final = {form: m(images).embeddings for form, m in built.items()}
agreement = {form: F.cosine_similarity(e, final["plain"], dim=-1).mean().item() for form, e in final.items()}
largest = (final["preserve"] - final["plain"]).abs().max().item() / final["plain"].abs().max().item()
print(" · ".join(f"{form} {value:.4f}" for form, value in agreement.items()))
print(f"preserve differs from plain by at most {largest:.0e} of the largest value")

# %% [markdown]
# `preserve` starts as exactly the pretrained function, and both of its branches can learn from there. The others
# start from something else; on strongly pretrained weights, where attention is peaked, they lose more than on a small
# random twin.

# %% [markdown]
# ## Is anything subtracted? The folding proof
#
# Write the output matrix as $[W_1\ W_2]$. Then $W_1 (x_1 - \lambda x_2) + W_2 x_2 = W_1 x_1 + (W_2 - \lambda W_1)
# x_2$: the `published` form **is** plain attention with another output matrix, for any $\lambda$. Folding it gives
# the same numbers.

# %%
folded = copy.deepcopy(built["published"].trunk)
for _, block in attention.layers(folded):
    block.attn = attention.fold(block.attn)
with torch.no_grad():
    ours, theirs = folded(normal), built["published"].trunk(normal)
print(f"largest difference after folding: {(ours - theirs).abs().max():.1e} of {theirs.abs().max():.2f}")

# %% [markdown]
# ## Two maps and their difference
#
# Where does the class token look, in the first branch, in the second, and after subtraction? Drawn for the last block
# of `paper`, averaged over heads; the difference has negative weights, which no softmax has.

# %%
paper_maps = attention.attention_maps(built["paper"].trunk, normal[:SHOWN])
plots.attention(images[:SHOWN], paper_maps[-1], "paper: both maps and what is left of their difference")
plt.show()

# %%
kept = attention.attention_maps(built["preserve"].trunk, normal[:SHOWN])
plots.attention(
    images[:SHOWN], kept[-1], "preserve at the start: both maps are the same, so the difference is the map itself"
)
plt.show()

# %% [markdown]
# ## Lambda, layer by layer

# %%
lambdas = {form: attention.strengths(m.trunk).mean(1).numpy() for form, m in built.items() if form != "plain"}
table = pd.DataFrame(lambdas, index=cosine.index)
ax = table.plot(marker="o", figsize=(7, 3), title="Lambda at the start: a constant, or a schedule by depth")
ax.set(ylabel="lambda (mean over heads)", xticks=table.index)
plt.show()

# %% [markdown]
# ## What does each form cost?

# %%
cost = pd.DataFrame(index=list(built), columns=["parameters", "ms per image"], dtype=float)
for form, m in built.items():
    with torch.no_grad():
        m(images)
        start = time.perf_counter()
        for _ in range(REPEATS):
            m(images)
    cost.loc[form] = (
        sum(p.numel() for p in m.parameters()),
        1000 * (time.perf_counter() - start) / REPEATS / len(images),
    )
cost["cost to plain"] = cost["ms per image"] / cost.loc["plain", "ms per image"]
cost.style.format({"parameters": "{:,.0f}", "ms per image": "{:.2f}", "cost to plain": "{:.2f}"})

# %%
report = {
    "cosine": agreement,
    "lambda": {form: v.tolist() for form, v in lambdas.items()},
    "source": config.model.source,
}
write_json(run.path("model/report.json"), report)
run.finish(
    [run.path("model/text_embeddings.safetensors"), run.path("model/report.json")],
    summary={"model": f"{config.model.source}, attention {config.model.attention}, {size} px"},
)
