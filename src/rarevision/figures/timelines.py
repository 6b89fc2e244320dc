"""Pictures of one study: scores, true and predicted events along its frames, and the frames that events show."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rarevision.data import FrameIndex
from rarevision.events import Event, runs, to_labels
from rarevision.figures.charts import images
from rarevision.figures.palette import BLUE, REGION_COLOUR, TITLE
from rarevision.labels import COLUMN, LABELS, REGIONS
from rarevision.scores import StudyScores

TRUE, PREDICTED = "#F5C6A0", "black"  # of a lane's events


def timeline(
    study: StudyScores,
    predicted: Sequence[Event],
    truth: Sequence[Event] | None = None,
    thumbnails: Sequence[tuple[int, np.ndarray]] = (),
) -> Figure:
    """A whole study on one time axis: thumbnails, regions (truth over prediction), and one lane per other label with
    scores as a line, truth as an orange band and predicted events as black bars. Lanes without events are left out.
    """
    present = {label for event in [*predicted, *(truth or ())] for label in event.labels}
    lanes = [name for name in LABELS if name in present and name not in REGIONS]
    heights = [1.1 if len(thumbnails) else 0.01, 0.7, max(0.42 * len(lanes), 0.2)]
    figure, (top, ribbon, body) = plt.subplots(
        3, 1, figsize=(11, 1.9 + sum(heights)), sharex=True, height_ratios=heights
    )
    low, high = (int(study.frame[0]), int(study.frame[-1])) if len(study.frame) else (0, 0)
    body.set(xlabel="frame", xlim=(low, high + 1))
    _draw_thumbnails(top, ribbon, thumbnails)
    _draw_regions(ribbon, predicted, truth)
    below = {"loc": "lower left", "bbox_to_anchor": (0, -0.55 if len(thumbnails) else 1.0)}
    handles = [Patch(color=colour, label=name) for name, colour in REGION_COLOUR.items()]
    ribbon.legend(handles=handles, ncols=len(handles), **below)
    for lane, name in enumerate(lanes):
        score = study.probs[:, COLUMN[name]]
        _band(body, truth or (), name, lane + 0.05, 0.85, TRUE)
        body.plot(study.frame, lane + 0.05 + 0.85 * score / score.max(initial=1e-6), lw=0.5, color=BLUE)
        _band(body, predicted, name, lane + 0.02, 0.14, PREDICTED)
    body.set_yticks(np.arange(len(lanes)) + 0.45, lanes)
    body.set_ylim(0, max(len(lanes), 1))
    said = "scores (blue, each lane to its own peak), truth (orange bands), predicted events (black bars)"
    figure.suptitle(f"{study.study}: {said}", **TITLE)
    return figure


def _band(ax: Axes, events: Sequence[Event], name: str, y: float, height: float, colour: str) -> None:
    spans = [(event.start, event.end - event.start + 1) for event in events if name in event.labels]
    ax.broken_barh(spans, (y, height), color=colour, linewidth=0)


def _draw_regions(ax: Axes, predicted: Sequence[Event], truth: Sequence[Event] | None) -> None:
    for name, colour in REGION_COLOUR.items():
        _band(ax, predicted, name, 0, 0.9, colour)
        _band(ax, truth or (), name, 1, 0.9, colour)
    ax.set_yticks([0.45, 1.45], ["predicted", "truth unknown" if truth is None else "truth"])
    ax.set_ylim(0, 2.1)


def _draw_thumbnails(ax: Axes, below: Axes, pictures: Sequence[tuple[int, np.ndarray]]) -> None:
    """Pictures side by side, each with a line to its frame on the axis `below`."""
    ax.axis("off")
    low, high = below.get_xlim()
    for i, (frame, picture) in enumerate(pictures):
        inset = ax.inset_axes((i / len(pictures), 0, 0.97 / len(pictures), 1))
        inset.imshow(picture)
        inset.set_title(f"{frame}", fontsize=7, loc="center")
        inset.axis("off")
        middle = low + (i + 0.5) * (high - low) / len(pictures)
        below.annotate("", (frame, 2.1), (middle, 2.7), arrowprops={"arrowstyle": "-", "lw": 0.6})


def thumbnails(
    study: StudyScores, events: Sequence[Event], index: FrameIndex | None, limit: int = 8
) -> list[tuple[int, np.ndarray]]:
    """Frame number and picture at the middle of the longest run of each label; spread over the study, at most `limit`.

    Evenly spread frames where there are no events; nothing where `index` does not hold the study's frames.
    """
    if index is None or study.study not in index.studies:
        return []
    part = index.select([study.study])
    longest = [max(found, key=np.ptp) for y in to_labels(part.frame, list(events)).T if len(found := runs(y > 0))]
    rows = np.unique(np.sum(longest, axis=1) // 2) if longest else np.arange(len(part))
    rows = rows[np.linspace(0, len(rows) - 1, min(limit, len(rows))).astype(int)]
    return [(int(part.frame[row]), part.image(row)) for row in rows]


def event_frames(
    study: StudyScores, events: Sequence[Event], index: FrameIndex, truth: Sequence[Event] | None, limit: int
) -> Figure:
    """The middle frame of each event, in the order listed, at most `limit`; said to be right where a true event of the
    label shows that frame.
    """
    part = index.select([study.study])
    pictures, titles = [], []
    for event in events[:limit]:
        middle = (event.start + event.end) // 2
        row = min(int(np.searchsorted(part.frame, middle)), len(part) - 1)
        right = any(t.start <= middle <= t.end and set(event.labels) <= set(t.labels) for t in truth or ())
        mark = "" if truth is None else ", true" if right else ", false"
        pictures.append(part.image(row))
        titles.append(f"{', '.join(event.labels)}{mark}\n{event.start} to {event.end}")
    left = f", the first {limit} of {len(events)}" if len(events) > limit else ""
    columns = min(8, max(1, len(pictures)))
    return images(pictures, titles, columns, f"{study.study}: what the events show{left}", size=1.45)
