"""Pictures of the data: labels that come together, durations of events, frames of each label and capsule system."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rarevision.config import Data
from rarevision.data import FrameIndex, Reader, open_reader
from rarevision.figures.charts import cells, images
from rarevision.figures.palette import GROUP_COLOUR, name_rows
from rarevision.labels import LABELS


def cooccurrence(labels: np.ndarray, title: str) -> Axes:
    """Share of each row label's frames that also carry the column's label; `labels` is [N, 17] of 0 and 1."""
    both = labels.T.astype(np.float64) @ labels
    share = pd.DataFrame(both / np.maximum(np.diag(both), 1)[:, None], LABELS, LABELS)
    text = share.map(lambda x: "" if x < 0.005 else "1" if x > 0.995 else f"{x:.2f}".lstrip("0"))
    return cells(share, text, title, "share of the row's frames")


def durations(frames: Mapping[str, Sequence[float]], title: str) -> Axes:
    """One row per label: the length of every event in frames as a point, their median as a bar, on a log scale."""
    _, ax = plt.subplots(figsize=(8, 0.26 * len(frames) + 1))
    rng = np.random.default_rng(0)
    for i, (name, lengths) in enumerate(frames.items()):
        height = i + rng.uniform(-0.25, 0.25, len(lengths))
        ax.scatter(lengths, height, s=8, alpha=0.5, color=GROUP_COLOUR[name], linewidths=0)
        if len(lengths):
            ax.plot([np.median(lengths)] * 2, [i - 0.38, i + 0.38], color="black", lw=2)
    name_rows(ax, list(frames))
    ax.set(title=title, xlabel="frames per event (log; black: median)", xscale="log")
    return ax


def montage(picked: Mapping[str, np.ndarray], frames: Reader, index: FrameIndex, width: int) -> Figure:
    """Up to `width` frames of each label: `picked` names rows of `index`, `frames` reads them; two labels per line."""
    pictures, titles = [], []
    blank = np.full((8, 8, 3), 255, np.uint8)
    for name, rows in picked.items():
        pictures += [frames.read(int(row)) for row in rows] + [blank] * (width - len(rows))
        studies = [f"study {index.studies[int(index.study_of(row))]}" for row in rows] or ["no frame"]
        studies += [""] * (width - len(studies))
        titles += [f"{'' if i else name}\n{study}" for i, study in enumerate(studies)]
    return images(pictures, titles, 2 * width, "Frames of each label, drawn at random", size=1.05)


def systems(examples: Sequence[tuple[FrameIndex, str]], treatments: Mapping[str, Data]) -> Figure:
    """One study per capsule system, its middle frame under each treatment of `data`."""
    pictures, titles = [], []
    for index, study in examples:
        rows = index.rows(study)
        for name, data in treatments.items():
            reader = open_reader(index.select([study]), data, from_source=True)
            pictures.append(reader.read((rows.stop - rows.start) // 2))
            titles.append(f"{index.systems[index.studies.index(study)]}, study {study}\n{name}")
    return images(pictures, titles, len(treatments), "Mask, scale and colours differ from capsule to capsule", size=2)
