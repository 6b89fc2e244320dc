"""The checks that need a GPU, in one go: bf16, flash kernels, frames per second of the real-size model, random weights.

    python benchmarks/gpu.py                      ViT-B/16 at 224 px, batch 128, 16 workers; a few minutes, no network
    python benchmarks/gpu.py --tiny               the same steps on a CPU with a tiny trunk: does this script work?

1. Every form of attention, forward and backward under autocast: which kernel torch's profiler saw (asserted to be flash
   or cuDNN's flash for all forms but timm's own `difftransformer`, whose values are 2d wide), frames/s, memory.
2. bf16 against fp32: gradients and lambdas in fp32, no probability off by more than 0.05.
3. Training: steps alone, and the augmenting loader alone; the slower one is the training's speed.
4. Prediction as a run does it (`predict.predict`, files written) from 480 px PNGs, with one and with three folds'
   models; projected to the challenge's 161,025 test frames (published: 517 s). Target on an H200 with 16 cores: 90 s.
"""

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from frames import render
from predict import TEST_SET, ours, synchronise, training
from torch.profiler import ProfilerActivity, profile

from rarevision.config import Config, Data, Model, Predict
from rarevision.data import open_reader, read_test
from rarevision.model import FORMS, FrameModel, build_model

KERNELS = {  # what torch calls its ways to compute attention
    "flash": "aten::_scaled_dot_product_flash_attention",
    "cudnn": "aten::_scaled_dot_product_cudnn_attention",
    "efficient": "aten::_scaled_dot_product_efficient_attention",
    "math": "aten::_scaled_dot_product_attention_math",
}
TARGET = 90  # s


def form_speed(settings: Model, images: torch.Tensor, device: torch.device, rounds: int) -> dict:
    """Kernels, frames/s of forward and backward, and memory of one form, under bf16 autocast."""
    one = build_model(settings).to(device).train()
    for block in one.trunk.blocks:
        block.attn.maps_on_cpu = False  # so that --tiny takes the GPU's way

    def step():
        with torch.autocast(device.type, torch.bfloat16):
            output = one(images)
        output.logits.square().mean().backward()
        synchronise(device)

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    names = {event.key for event in seen.key_averages()}
    kernels = {kind for kind, name in KERNELS.items() if names & {name, f"{name}_for_cpu"}}
    if settings.attention != "difftransformer":
        assert kernels and kernels <= {"flash", "cudnn"}, f"{settings.attention}: computed by {kernels or 'no kernel'}"
    assert all(p.grad.dtype == p.dtype == torch.float32 for p in one.parameters() if p.grad is not None)
    assert all(p.grad is not None for name, p in one.named_parameters() if ".lambda_" in name)
    start = time.perf_counter()
    for _ in range(rounds):
        step()
    rate = rounds * len(images) / (time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    return {"form": settings.attention, "kernels": ", ".join(sorted(kernels)), "frames/s": rate, "GiB": memory}


@torch.inference_mode()
def bf16_error(one: FrameModel, images: torch.Tensor, device: torch.device) -> float:
    """Largest difference of a probability between bf16 and fp32."""
    exact = one(images).logits.sigmoid()
    with torch.autocast(device.type, torch.bfloat16):
        output = one(images)
    assert output.logits.dtype == torch.float32
    return (output.logits.sigmoid() - exact).abs().max().item()


def write_frames(root: Path, n: int, distinct: int) -> None:
    """n PNGs of 480 px, `distinct` of them rendered, the others links to these."""
    render(root, distinct)
    files = sorted(root.rglob("*.png"))
    for row in range(distinct, n):
        os.link(files[row % distinct], files[0].with_name(f"frame_{row:07d}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--frames", type=int, default=16384)
    parser.add_argument("--workers", type=int, default=16)
    o = parser.parse_args()
    if o.tiny:
        o.batch, o.frames, o.workers = 8, 48, 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = "bf16" if device.type == "cuda" else "no"
    if device.type == "cuda":
        assert torch.cuda.is_bf16_supported(), f"{torch.cuda.get_device_name()} has no bf16"
    elif not o.tiny:
        raise SystemExit("no GPU; --tiny tries the script on a CPU")
    torch.manual_seed(0)
    trunk, size = ("test_vit", 64) if o.tiny else ("vit_base_patch16_224", 224)
    settings = Model(trunk=trunk, image_size=size, contrastive=False, attention="preserve", lambda_init=0.4)
    images = torch.randint(0, 256, (o.batch, 3, size, size), dtype=torch.uint8, device=device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; {trunk}, {size} px, batch {o.batch}, {o.workers} workers")

    lines = []
    for form in FORMS:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        lines.append(form_speed(replace(settings, attention=form), images, device, rounds=2 if o.tiny else 20))
    print(pd.DataFrame(lines).round(1).to_string(index=False))

    models = [build_model(settings).to(device).eval() for _ in range(3)]
    error = bf16_error(models[0], images, device)
    assert error < 0.05, f"bf16 moves a probability by {error:.3f}"
    print(f"bf16 against fp32: no probability differs by more than {error:.4f}")

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_frames(root / "png", o.frames, min(o.frames, 256))
        index, _ = read_test(root / "png", progress=False)
        cached = Data(cache_root=str(root / "cache"), cache_size=256 if size > 128 else 96, workers=o.workers)
        png = open_reader(index, replace(cached, cache=False), progress=False)
        config = Config(data=cached, predict=Predict(batch_size=o.batch))
        for folds in (1, 3):
            seconds = ours(models[:folds], index, config, png, root / f"scores-{folds}")
            projected = TEST_SET * seconds / len(index)
            verdict = "within" if projected < TARGET else "over"
            said = f"; {TEST_SET:,} frames in {projected:.0f} s ({verdict} the target of {TARGET} s)"
            print(f"prediction from PNG, {folds} model(s): {len(index) / seconds:.0f} frames/s{'' if o.tiny else said}")
        cache = open_reader(index, cached, progress=False)
        rates = training(models[0], index, cache, o.batch, cached, device, precision)
        print(f"training, {settings.attention}: steps {rates['steps']:.0f} frames/s")
        print(f"augmenting loader, from the cache: {rates['loader']:.0f} frames/s")


if __name__ == "__main__":
    main()
