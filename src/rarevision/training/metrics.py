"""The lines of a fold's metrics.jsonl: one per epoch and one per skipped step; and the epochs read back as a table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rarevision.labels import ANATOMY, LABELS


def epoch_metrics(
    epoch: int, sums: list[float], validation_loss: float, ap: np.ndarray, skipped: int, rate: float
) -> dict[str, Any]:
    """The line of an epoch, as JSON.

    epoch            its number, from 1
    sums             over the epoch's steps: loss, its classification and contrastive term, and the number of steps
    validation_loss  of the averaged model, on hard labels
    ap               average precision [17] on validation; NaN where a label has no positive frame
    skipped          steps skipped so far in the whole training
    rate             frames trained per second
    """
    groups = {"ap": ap, "ap_anatomy": ap[: len(ANATOMY)], "ap_findings": ap[len(ANATOMY) :]}
    loss, classification, contrastive = (total / max(sums[3], 1) for total in sums[:3])
    return {
        "event": "epoch",
        "epoch": epoch,
        "loss": loss,
        "classification": classification,
        "contrastive": contrastive,
        "validation_loss": validation_loss,
        **{name: None if np.isnan(part).all() else float(np.nanmean(part)) for name, part in groups.items()},
        "ap_per_class": {name: None if np.isnan(v) else float(v) for name, v in zip(LABELS, ap, strict=True)},
        "skipped_steps": skipped,
        "frames_per_second": round(rate, 1),
    }


def epoch_line(entry: dict[str, Any], epochs: int) -> str:
    """An epoch's line for the screen."""
    means = {"AP": entry["ap"], "anatomy": entry["ap_anatomy"], "findings": entry["ap_findings"]}
    shown = " ".join(f"{name} -" if value is None else f"{name} {value:.3f}" for name, value in means.items())
    return (
        f"epoch {entry['epoch']}/{epochs}  loss {entry['loss']:.4f}  validation {entry['validation_loss']:.4f}  "
        f"{shown}  {entry['frames_per_second']:.0f} frames/s"
    )


def skipped_line(entry: dict[str, Any]) -> str:
    """A skipped step's line for the screen."""
    few = "; ".join(
        f"study {study} frames {str(frames[:4])[1:-1]}{' ...' if len(frames) > 4 else ''}"
        for study, frames in entry["frames"].items()
    )
    return f"step {entry['step']} of epoch {entry['epoch']} skipped, its {entry['what']} is not finite: {few}"


def history(folder: str | Path) -> pd.DataFrame:
    """The epochs of a fold's metrics.jsonl: a column per value, `AP <label>` per class (NaN: no positives)."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    epochs = [e | {f"AP {k}": v for k, v in e.pop("ap_per_class").items()} for e in lines if e["event"] == "epoch"]
    return pd.DataFrame(epochs).drop(columns="event").astype({f"AP {name}": float for name in LABELS})
