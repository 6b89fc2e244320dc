"""The frame model: an image trunk with differential attention, a classifier and a contrastive head.

    images -> trunk (a timm transformer, attention replaced) -> projection -> embeddings e [B, D]
    classification: BN(e * sigmoid(W2 relu(W1 e))) -> dropout -> linear -> logits [B, 17]
    contrastive:    e / |e| against the labels' 17 frozen text embeddings, times exp(tau) <= 100 -> [B, 17]

The text tower is used once, in eval mode, for the 17 embeddings of the labels' prompts, and then dropped.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rarevision.config import Model, Train
from rarevision.labels import N_LABELS, prompts
from rarevision.model.replacement import is_lambda, replace_attention
from rarevision.model.trunk import build_again, clip_trunk, timm_trunk
from rarevision.model.weights import ModelError, load_weights

MAX_TAU = math.log(100)
START_TAU = math.log(1 / 0.07)  # CLIP's own start; BiomedCLIP's learned 85 belongs to a softmax over captions
UNDECAYED = ("pos_embed", "_token", ".latent", "relative_position_bias_table")  # positions and learned tokens
SETTINGS = ("attention", "groups", "lambda_init", "reduction", "dropout", "contrastive")  # part of a model's recipe


class Output(NamedTuple):
    logits: Tensor  # float32 [B, 17]; probabilities are sigmoid(logits)
    contrastive: Tensor | None  # float32 [B, 17], logits of the contrastive head; None without one
    embeddings: Tensor  # float32 [B, D], before any normalisation


class Excitation(nn.Module):
    """`BN(x * sigmoid(W2 relu(W1 x)))`: squeeze-and-excitation (arXiv 1709.01507) of a feature vector."""

    def __init__(self, width: int, reduction: int):
        super().__init__()
        narrow = max(width // reduction, 1)
        self.w1 = nn.Linear(width, narrow, bias=False)
        self.w2 = nn.Linear(narrow, width, bias=False)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * self.w2(self.w1(x).relu()).sigmoid())


class FrameModel(nn.Module):
    """Scores of the 17 labels for single frames.

    `recipe` is JSON: `SETTINGS` and what `trunk.py` describes. With the weights it is all that `restore_model` needs.
    """

    def __init__(self, trunk: nn.Module, recipe: dict[str, Any]):
        super().__init__()
        self.recipe = recipe
        self.image_size: int = recipe["image_size"]
        width = recipe["embed_dim"] or trunk.num_features
        self.trunk = replace_attention(trunk, recipe["attention"], recipe["groups"], recipe["lambda_init"])
        bias = recipe.get("projection_bias", False)
        self.projection = nn.Linear(trunk.num_features, width, bias) if recipe["embed_dim"] else nn.Identity()
        self.excitation = Excitation(width, recipe["reduction"])
        self.dropout = nn.Dropout(recipe["dropout"])
        self.classifier = nn.Linear(width, N_LABELS)
        self.tau = nn.Parameter(torch.tensor(START_TAU)) if recipe["contrastive"] else None
        self.register_buffer("text", torch.zeros(N_LABELS, width) if recipe["contrastive"] else None)
        for name in ("mean", "std"):  # of images in 0..1
            self.register_buffer(name, torch.tensor(recipe[name]).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Output:
        """images: `[B, 3, S, S]` RGB, uint8 in 0..255 or float in 0..1; normalised here, on the model's device."""
        features = self.projection(self.trunk(self.normalise(images)))
        with torch.autocast(features.device.type, enabled=False):  # the heads are small and stay in fp32
            return self.heads(features.float())

    def normalise(self, images: Tensor) -> Tensor:
        """What the trunk sees of images as `forward` takes them."""
        if images.ndim != 4 or images.shape[1:] != (3, self.image_size, self.image_size):
            raise ValueError(f"images {tuple(images.shape)} must be [B, 3, {self.image_size}, {self.image_size}]")
        if images.dtype == torch.uint8:
            images = images.float() / 255
        return (images - self.mean) / self.std

    def heads(self, embeddings: Tensor) -> Output:
        """Both heads on embeddings `[B, D]`."""
        logits = self.classifier(self.dropout(self.excitation(embeddings)))
        contrastive = None
        if self.tau is not None:
            if self.training:  # the parameter, not its use, is clamped: a clamp in the graph would stop tau for good
                with torch.no_grad():
                    self.tau.clamp_(max=MAX_TAU)
            contrastive = self.tau.exp() * F.normalize(embeddings, dim=-1) @ self.text.T
        return Output(logits, contrastive, embeddings)

    def parameter_groups(self, train: Train) -> list[dict[str, Any]]:
        """AdamW groups with `name`, `params`, `lr`, `weight_decay`; every trainable parameter is in exactly one.

        The report decays everything. Not to decay norms, biases, tokens, positions and tau is this project's choice.
        Lambdas (fp32, no decay) learn at the heads' rate: they are new, like the heads.
        """
        names = ("backbone", "backbone, no decay", "heads", "heads, no decay", "lambdas")
        groups: dict[str, list[nn.Parameter]] = {name: [] for name in names}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                part = "backbone" if name.startswith(("trunk.", "projection.")) else "heads"
                undecayed = parameter.ndim < 2 or name.endswith(UNDECAYED)  # norms have one dimension
                groups["lambdas" if is_lambda(name) else part + ", no decay" * undecayed].append(parameter)
        return [
            {
                "name": name,
                "params": params,
                "lr": train.lr_backbone if name.startswith("backbone") else train.lr_heads,
                "weight_decay": train.weight_decay if name in ("backbone", "heads") else 0.0,
            }
            for name, params in groups.items()
            if params
        ]


def build_model(
    model: Model, text_embeddings: Tensor | None = None, prevalence: np.ndarray | None = None
) -> FrameModel:
    """A model with pretrained weights and new heads.

    text_embeddings: `[17, D]` from `text_embeddings`; None: made here. prevalence: `[17]`, share of positive training
    frames, asked for by `prior_bias`. New weights are drawn from torch's global generator. Raises `ModelError`.
    """
    if not model.source:  # no text tower: nothing to compare with
        model = dataclasses.replace(model, contrastive=False)
    text = text_embeddings if model.contrastive else None
    clip: Any = None
    if not model.trunk or (model.contrastive and text is None):
        clip, folder = load_weights(model)
    if model.contrastive and text is None:
        text = encode_prompts(clip, folder, model)
    if model.trunk:
        trunk, described = timm_trunk(model)
        described["embed_dim"] = 0 if text is None else text.shape[1]
    else:
        trunk, projection, described = clip_trunk(clip, folder)
    frame_model = FrameModel(trunk, {name: getattr(model, name) for name in SETTINGS} | described)
    if not model.trunk:
        frame_model.projection = projection
    if text is not None:
        if text.shape != frame_model.text.shape:
            raise ModelError(f"text embeddings {tuple(text.shape)} do not fit the model's "
                             f"{tuple(frame_model.text.shape)}; make them again from this source")  # fmt: skip
        frame_model.text.copy_(text)
    if model.prior_bias:
        if prevalence is None:
            raise ModelError("model.prior_bias is set: build needs the labels' prevalence in the training frames")
        p = torch.as_tensor(np.clip(prevalence, 1e-4, 1 - 1e-4), dtype=torch.float32)
        with torch.no_grad():
            frame_model.classifier.bias.copy_(p.logit())
    return frame_model


def restore_model(recipe: dict[str, Any], state: dict[str, Tensor]) -> FrameModel:
    """A trained model from its recipe and its state dict alone: no pretrained weights, no text tower. In eval mode."""
    frame_model = FrameModel(build_again(recipe), recipe)
    try:
        frame_model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelError(f"weights do not fit the recipe they came with: {error}") from None
    return frame_model.eval()


def text_embeddings(model: Model) -> Tensor:
    """The labels' prompts as unit vectors, float32 `[17, D]`, from the source's text tower; `[17, 0]` without one."""
    if not model.source:
        return torch.zeros(N_LABELS, 0)
    return encode_prompts(*load_weights(model), model)


@torch.no_grad()
def encode_prompts(clip: nn.Module, folder: str, model: Model) -> Tensor:
    """As `text_embeddings`, by a CLIP model that `load_weights` has loaded from a folder."""
    clip.eval()  # open_clip hands models over in training mode: dropout would be in the embeddings
    try:
        tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(prompts(model.prompt))
    except Exception as error:  # transformers raises many kinds for tokenizer files that are missing or torn
        raise ModelError(f"its tokenizer cannot be read: {error}", file=folder) from error
    if tokens.max() >= clip.vocab_size:
        words = f"its tokenizer has a word {tokens.max()}, its text tower {clip.vocab_size} words"
        raise ModelError(words, file=folder, remedy="the tokenizer files belong to another model")
    embeddings = F.normalize(clip.encode_text(tokens).float(), dim=-1)
    if not embeddings.isfinite().all():
        raise ModelError("its text tower gives embeddings that are not finite; the weights are damaged", file=folder)
    return embeddings
