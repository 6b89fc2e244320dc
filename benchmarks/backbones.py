"""Which forms of attention each backbone takes, and whether `preserve` starts as the original: a Markdown table.

The columns `preserve` and `published` are the largest difference of the final features to the original's, as a share
of the largest feature; `published`, which is not meant to be 0, shows that attention matters in these weights. The
reason is that of the first form that does not apply.

    python benchmarks/backbones.py

Every model has timm's full size and random weights, drawn so that each layer matters (timm starts with weights of 0.02
and layer scales of 1e-5, with which any two models are alike). Nothing is downloaded.
"""

import warnings

import timm
import torch
from torch import nn

from rarevision.model import comparison

BACKBONES = {  # timm's name -> what it is, image size in px
    "deit_small_patch16_224": ("DeiT-S", 224),
    "vit_small_patch16_224.dino": ("ViT-S/16 of DINO, GastroNet", 224),
    "vit_tiny_patch16_224": ("ViT-Ti, three heads", 224),
    "vit_base_patch16_clip_quickgelu_224": ("OpenAI's CLIP", 224),
    "vit_small_patch14_reg4_dinov2": ("DINOv2 with registers", 224),
    "vit_base_patch16_siglip_224": ("SigLIP, attention pooling", 224),
    "vit_small_patch16_dinov3": ("DINOv3, rotary positions", 224),
    "eva02_small_patch14_224": ("EVA-02, rotary positions", 224),
    "eva02_base_patch16_clip_224": ("EVA-CLIP, rotary positions", 224),
    "beit_base_patch16_224": ("BEiT, relative positions", 224),
    "swin_tiny_patch4_window7_224": ("Swin, windows", 224),
    "resnet50": ("ResNet-50", 224),
    "convnext_tiny": ("ConvNeXt", 224),
}


def redraw(trunk: nn.Module) -> nn.Module:
    """Random weights of a size at which every layer changes its input about as much as a trained one does."""
    for name, value in trunk.requires_grad_(False).named_parameters():
        if value.ndim > 1 and "relative_position" not in name:
            value.normal_(std=value[0].numel() ** -0.5)
        elif "gamma" in name:
            value.uniform_(0.5, 1.0)
    return trunk


@torch.no_grad()
def main() -> None:
    print("| backbone | timm's name | parameters | forms | `preserve` | `published` | not, because |")
    print("|---|---|---|---|---|---|---|")
    for name, (what, size) in BACKBONES.items():
        torch.manual_seed(0)
        fixed = {} if name in ("resnet50", "convnext_tiny") else {"img_size": size}
        trunk = redraw(timm.create_model(name, num_classes=0, **fixed)).eval()
        images = torch.randn(2, 3, size, size)
        forms, refused = comparison.fitting_forms(trunk)
        original, apart = trunk(images), {}
        for form in ("preserve", "published"):
            apart[form] = "-"
            if form in forms:
                features = comparison.with_attention(trunk, form)(images)
                apart[form] = f"{(features - original).abs().max() / original.abs().max():.0e}"
        names = dict.fromkeys(form.partition(",")[0] for form in forms)
        applied = "all five" if len(names) == 5 else ", ".join(f"`{one}`" for one in names)
        parameters = sum(p.numel() for p in trunk.parameters()) / 1e6
        reason = next(iter(refused.values()), "").removeprefix("block 0: ")
        print(
            f"| {what} | `{name}` | {parameters:.0f} M | {applied} | {' | '.join(apart.values())} | {reason} |",
            flush=True,
        )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
