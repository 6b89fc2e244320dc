"""A twin of BiomedCLIP: the same parts and the same files, small enough to train on a laptop's processor.

The original (784 MB) cannot be shipped with a demo. The twin is a folder in the hub's own layout, so that everything
that loads the original loads the twin, and the original can be put in its place:

    open_clip_config.json         the original's keys: timm trunk, linear projection, BERT text tower, MLP projection
    open_clip_pytorch_model.bin   a torch state dict, as open_clip saves it
    config.json                   the text tower's configuration
    tokenizer.json, vocab.txt, tokenizer_config.json      a real WordPiece tokenizer, vocabulary of a few hundred
    trunk/config.json             size of the image tower, which no named timm model has (timm's `local-dir` format)
    SHA256SUMS                    of all of these, written last

Its weights are not trained. Drawn at random, though, a small trunk attends to everything alike and learns slowly, and
its text tower puts all labels in one place; so the twin starts with what pretraining is known to leave behind:
attention that is local and peaked (`_mimic`), and prompts that lie apart (`_spread`).

    rarevision twin models/biomedclip-twin
"""

import string
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import nn
from transformers import BertConfig, BertTokenizer

from rarevision.files import atomic, sha256, write_json
from rarevision.labels import N_LABELS, prompts

CONTEXT = 64  # tokens of a prompt (the original's: 256)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # the original's
OWN = {"SHA256SUMS", "manifests"}  # what SHA256SUMS does not list


@torch.no_grad()
def build_twin(
    folder: str | Path,
    image_size: int = 0,
    grid: int = 8,
    width: int = 96,
    depth: int = 4,
    heads: int = 4,
    embed_dim: int = 128,
    seed: int = 0,
) -> Path:
    """Write a twin; the same arguments give the same weights. Returns the folder.

    image_size: px, 0 = 96; grid: patches along a side, so `grid^2 + 1` tokens; width: channels of a token; embed_dim:
    channels of the joint space of images and texts.
    """
    folder = Path(folder)
    image_size = image_size or 96
    if image_size % grid or width % heads or heads % 2 or width % 4 or embed_dim <= N_LABELS:
        raise ValueError(f"twin: image_size {image_size} must divide by grid {grid}, width {width} by 4 and by heads "
                         f"{heads}; heads must be even, embed_dim {embed_dim} above {N_LABELS}")  # fmt: skip
    vocabulary = _vocabulary()
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / "vocab.txt") as temporary:
        temporary.write_text("\n".join(vocabulary) + "\n")
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(vocabulary)}, model_max_length=CONTEXT)
    tokenizer.save_pretrained(folder)
    BertConfig(
        vocab_size=len(vocabulary), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=CONTEXT, pad_token_id=vocabulary.index("[PAD]"), initializer_range=0.25,
    ).save_pretrained(folder)  # fmt: skip
    trunk = {"img_size": image_size, "patch_size": image_size // grid, "embed_dim": width, "depth": depth,
             "num_heads": heads, "mlp_ratio": 2.0}  # fmt: skip
    timm_config = {"architecture": "vit_base_patch16_224", "model_args": trunk, "pretrained_cfg": {}}
    write_json(folder / "trunk" / "config.json", timm_config)
    config = _config(image_size, embed_dim)
    write_json(folder / "open_clip_config.json", config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        clip = _clip(folder, config).eval()
        for block in clip.visual.trunk.blocks:
            _mimic(block)
        clip.visual.trunk.pos_embed[0, 1:] = _positions(grid, width)
        _spread(clip, folder)
    with atomic(folder / "open_clip_pytorch_model.bin") as temporary, temporary.open("wb") as file:
        torch.save(clip.state_dict(), file)  # into a path, torch would write the temporary name into the archive
    _write_sums(folder)
    return folder


def _write_sums(folder: Path) -> None:
    """SHA256SUMS of every file of the folder, as `sha256sum -c` reads it; not of a stage's manifest beside them."""
    files = {p.relative_to(folder): p for p in sorted(folder.rglob("*")) if p.is_file() and p.name[0] != "."}
    sums = [f"{sha256(p)}  {name.as_posix()}\n" for name, p in files.items() if name.parts[0] not in OWN]
    with atomic(folder / "SHA256SUMS") as temporary:
        temporary.write_text("".join(sums))


def _config(image_size: int, embed_dim: int) -> dict[str, Any]:
    vision = {
        "timm_model_name": "local-dir:trunk",
        "timm_model_pretrained": False,
        "timm_pool": "",
        "timm_proj": "linear",
        "image_size": image_size,
    }
    text = {
        "hf_model_name": "rarevision/tiny-bert",
        "hf_tokenizer_name": "rarevision/tiny-bert",
        "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "context_length": CONTEXT,
    }
    model = {"embed_dim": embed_dim, "vision_cfg": vision, "text_cfg": text}
    return {"model_cfg": model, "preprocess_cfg": {"mean": list(MEAN), "std": list(STD)}}


def _clip(folder: Path, config: dict[str, Any]) -> nn.Module:
    """The twin with fresh weights, made by open_clip as it will be when it is read."""
    model = config["model_cfg"]
    vision = model["vision_cfg"] | {"timm_model_name": f"local-dir:{folder / 'trunk'}"}
    text = model["text_cfg"] | {"hf_model_name": str(folder), "hf_model_pretrained": False}
    return open_clip.CustomTextCLIP(model["embed_dim"], vision, text)


def _mimic(block: nn.Module) -> None:
    """Weights like a pretrained transformer's: "Mimetic Initialization of Self-Attention Layers" (arXiv 2305.09828).

    Per head `Wq Wk^T ~ 0.7 I + 0.7 Z` (a token attends to its like), over all heads `Wv Wo ~ 0.4 Z - 0.4 I`, Z
    Gaussian; the factors are taken from singular values. The MLP is Gaussian with the variance of its width.
    """
    attn, width = block.attn, block.attn.qkv.in_features
    q, k, v = attn.qkv.weight.view(3, width, width)
    for head in range(attn.num_heads):
        rows = slice(head * attn.head_dim, (head + 1) * attn.head_dim)
        left, size, right = torch.linalg.svd(0.7 * torch.eye(width) + 0.7 * torch.randn(width, width) / width**0.5)
        root = size[: attn.head_dim].sqrt()[:, None]
        q[rows], k[rows] = root * left.T[: attn.head_dim], root * right[: attn.head_dim]
    left, size, right = torch.linalg.svd(0.4 * torch.randn(width, width) / width**0.5 - 0.4 * torch.eye(width))
    v.copy_(size.sqrt()[:, None] * right)
    attn.proj.weight.copy_(left * size.sqrt())
    for linear in (block.mlp.fc1, block.mlp.fc2):
        linear.weight.normal_(std=linear.in_features**-0.5)


def _positions(grid: int, width: int) -> torch.Tensor:
    """Sine-cosine embeddings `[grid * grid, width]` of the patches' rows and columns, so that neighbours are alike."""
    axis = torch.arange(grid).float()
    y, x = (a.flatten()[:, None] for a in torch.meshgrid(axis, axis, indexing="ij"))
    waves = 10_000.0 ** -(torch.arange(width // 4) / (width // 4))
    return 0.5 * torch.cat([wave(a * waves) for a in (x, y) for wave in (torch.sin, torch.cos)], dim=1)


def _spread(clip: nn.Module, folder: Path) -> None:
    """Fit the text tower's last layer so that the labels' prompts lie apart: cosine 0.5 instead of 0.99."""
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(prompts())
    hidden: list[torch.Tensor] = []
    handle = clip.text.proj[-1].register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    clip.encode_text(tokens)
    handle.remove()
    (features,), last = hidden, clip.text.proj[-1].weight
    apart, _ = torch.linalg.qr(torch.randn(len(last), len(tokens) + 1))  # a common direction and one for each prompt
    targets = (apart[:, :1] + apart[:, 1:]).T
    inverse = torch.linalg.pinv(features, rtol=1e-4)
    last.copy_((inverse @ targets).T)


def _vocabulary() -> list[str]:
    """WordPiece: BERT's special tokens, every ASCII sign as a word and as a continuation, the words of the prompts."""
    signs = string.ascii_lowercase + string.digits
    words = {word for prompt in prompts() for word in prompt.lower().replace("-", " - ").split()}
    return [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *string.punctuation,
        *signs,
        *(f"##{sign}" for sign in signs),
        *sorted(word for word in words if len(word) > 1),
    ]
