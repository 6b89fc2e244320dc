"""The submission: an events file that the challenge accepts, and the validator that every one is written through.

    rarevision check FILE --frames TEST_ROOT      (or --scores RUN_DIR/probs/test)

says OK (exit 0) or lists every fault with video, event number and reason (exit 1). A submission names exactly the test
set's videos; every event lies inside its video's frames, carries known labels and is there once.
"""

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rarevision.errors import UserError
from rarevision.event_files import Fault, examine, load, show, write_events
from rarevision.events import Event, Events, EventsError
from rarevision.files import atomic, sha256, versions, write_json
from rarevision.labels import LABELS

Frames = Mapping[str, Sequence[int] | np.ndarray]  # study -> its frame numbers, or only the first and the last


class SubmissionError(UserError):
    """Events that cannot be submitted; `faults` holds every reason."""

    def __init__(self, path: str | Path, faults: list[Fault]):
        self.faults = faults
        listed = "\n".join(f"  {fault}" for fault in faults[:20]) + "\n  ..." * (len(faults) > 20)
        super().__init__(f"{path}: nothing written; {len(faults)} fault(s):\n{listed}")


def _spans(frames: Frames) -> dict[str, tuple[int, int]]:
    for study, numbers in frames.items():
        if len(numbers) == 0:
            raise ValueError(f"study {study} has no frames to submit events for")
    return {study: (int(np.min(numbers)), int(np.max(numbers))) for study, numbers in frames.items()}


def find_faults(document: Any, frames: Frames) -> tuple[Events, list[Fault]]:
    """Events of a parsed JSON document and every fault that would keep it from being a submission for `frames`."""
    spans = _spans(frames)
    seen: dict[tuple[str, int, int, str], int] = {}  # study, start, end, label -> event number

    def inspect(study: str, number: int, event: Event) -> list[str]:
        reasons = [f"label {name!r} is named twice" for name, n in Counter(event.labels).items() if n > 1]
        if study in spans:
            first, last = spans[study]
            if event.start < first or event.end > last:
                reasons.append(f"frames {event.start}..{event.end} reach outside the study's {first}..{last}")
        for name in dict.fromkeys(event.labels):
            earlier = seen.setdefault((study, event.start, event.end, name), number)
            if earlier != number:
                reasons.append(f"{name!r} at frames {event.start}..{event.end} is already event {earlier}")
        return reasons

    events, faults = examine(document, inspect)
    for study in [s for s in events if s not in spans]:
        near = difflib.get_close_matches(study, [s for s in spans if s not in events], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        faults.append(Fault(study, None, f"{show(study)} is not a video of the test set{hint}"))
    faults += [Fault(s, None, "missing: the test set has this video") for s in spans if s not in events]
    return events, faults


def check_submission(path: str | Path, frames: Frames) -> tuple[Events, list[Fault]]:
    """Events of a submission file and every fault of it; a file that is no JSON is a single fault."""
    try:
        document = load(path)
    except EventsError as error:
        return {}, [Fault("", None, str(error))]
    return find_faults(document, frames)


def write_submission(path: str | Path, events: Events, frames: Frames, notes: Mapping[str, Any] | None = None) -> Path:
    """Write a submission and, beside it, `<name>.manifest.json`; returns the manifest's path.

    What was written is read back and checked before it takes its place, so that an invalid file never stands there:
    `SubmissionError` then, and an older submission stays as it was. `notes` are JSON facts for the manifest.
    """
    path = Path(path)
    manifest = path.with_suffix(".manifest.json")
    facts = {"notes": json.loads(json.dumps(dict(notes or {}), allow_nan=False))}  # fails before anything is written
    with atomic(path) as temporary:
        try:
            write_events(temporary, events)
        except (EventsError, TypeError) as error:
            raise SubmissionError(path, [Fault("", None, str(error))]) from None
        _, faults = check_submission(temporary, frames)
        if faults:
            raise SubmissionError(path, faults)
        manifest.unlink(missing_ok=True)  # the old one never describes the new file
    write_json(
        manifest,
        {
            "file": path.name,
            "sha256": sha256(path),
            "bytes": path.stat().st_size,
            "events": {study: len(rows) for study, rows in events.items()},
            "events per label": _per_label(events),
            "frames": {study: list(span) for study, span in _spans(frames).items()},
            "versions": versions(),
            **facts,
        },
    )
    return manifest


def _per_label(events: Events) -> dict[str, int]:
    counts = Counter(name for rows in events.values() for event in rows for name in event.labels)
    return {name: counts[name] for name in LABELS}


def describe_submission(events: Events) -> str:
    """One line on a valid submission."""
    named = ", ".join(f"{name} {n}" for name, n in _per_label(events).items() if n) or "none of any label"
    return f"{len(events)} videos, {sum(map(len, events.values()))} events ({named})"
