"""What each form of attention costs: time of a layer, forward and backward, as a ratio to `plain` in the same run.

    python benchmarks/attention.py                                                   # ViT-S layer, CPU, under a minute
    python benchmarks/attention.py --device cuda --dtype bf16 --width 768 --heads 12 --batch 128     # ViT-B, one GPU
    python benchmarks/attention.py --device cuda --dtype bf16 --trunk vit_base_patch16_224 --batch 128 # whole trunk

Fused uses `scaled_dot_product_attention`, naive writes the maps out. Variants take turns; the fastest of their rounds
counts; on a CPU it is one thread's processor time. Other work on the machine then matters least. `paper` fused is shown
on a CPU too, where the package writes the maps out instead. On a GPU the last column says whether flash kernels take
the form.
"""

import argparse
import copy
import time

import pandas as pd
import timm
import torch
from timm.layers import Attention
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rarevision.model import FORMS, replace_attention


class Layer(nn.Module):
    """One attention layer where `replace_attention` looks for it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        block = nn.Module()
        block.attn = Attention(width, heads, qkv_bias=True)
        self.blocks = nn.ModuleList([block])

    def forward(self, x):
        return self.blocks[0].attn(x)


def seconds(work, device: str) -> float:
    if device == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def once(model: nn.Module, x: torch.Tensor, device: str, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of one forward and one backward pass."""
    out = []

    def forward():
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            out.append(model(x))

    ahead = seconds(forward, device)
    loss = out[0].float().square().mean()
    return ahead, seconds(loss.backward, device)


def takes_flash(model: nn.Module, x: torch.Tensor, device: str, dtype: torch.dtype) -> str:
    if device != "cuda":
        return ""
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast(device, dtype, enabled=dtype != torch.float32):
            model(x)
    except RuntimeError:
        return "no"
    return "yes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=197)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trunk", default="", help="time this timm model instead of one layer")
    options = parser.parse_args()
    device, dtype = (
        options.device,
        {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.dtype],
    )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if options.trunk:
        base = timm.create_model(options.trunk, num_classes=0)
        x = torch.randn(options.batch, 3, *base.patch_embed.img_size, device=device)
    else:
        base = Layer(options.width, options.heads)
        x = torch.randn(options.batch, options.tokens, options.width, device=device, requires_grad=True)
    variants = {}
    for form in FORMS:
        for fused in (False, True):
            model = copy.deepcopy(base)
            for block in model.blocks:
                block.attn.fused_attn = fused
            model = replace_attention(model, form, lambda_init=0.5).to(device).train()
            for block in model.blocks:
                block.attn.maps_on_cpu = False  # show what this rule of `paper` saves
            variants[form, "fused" if fused else "naive"] = model
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in variants}
    for turn in range(options.rounds + 2):
        for key, model in variants.items():
            model.zero_grad()
            measured = once(model, x, device, dtype)
            if turn >= 2:  # warm-up
                times[key].append(measured)
    rows = []
    for key, measured in times.items():
        ahead, back = (min(t) for t in zip(*measured, strict=True))
        rows.append({"form": key[0], "kernel": key[1], "forward ms": ahead * 1e3, "backward ms": back * 1e3})
    table = pd.DataFrame(rows)
    for direction in ("forward", "backward"):
        plain = table[table.form == "plain"].set_index("kernel")[f"{direction} ms"]
        table[f"{direction} / plain"] = table[f"{direction} ms"] / table.kernel.map(plain)
    table["flash"] = [
        takes_flash(model, x, device, dtype) if kernel == "fused" else "" for (_, kernel), model in variants.items()
    ]
    what = options.trunk or f"one layer, width {options.width}, {options.heads} heads, {options.tokens} tokens"
    name = torch.cuda.get_device_name() if device == "cuda" else "one CPU thread"
    print(f"{what}, batch {options.batch}, {options.dtype}, {name}, torch {torch.__version__}; ratios within a kernel")
    print(table.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
