"""The submission: an events file that the challenge accepts, and the validator that every one is written through.

    python -m rarevision.scoring.submission check FILE --frames TEST_ROOT      (or --scores RUN_DIR/probs/test)

says OK (exit 0) or lists every fault with video, event number and reason (exit 1). A submission names exactly the test
set's videos; every event lies inside its video's frames, carries known labels and is there once.
"""

import argparse
import difflib
import json
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rarevision.errors import UserError
from rarevision.events import Event, Events, EventsError, Fault, examine, load, show, write_events
from rarevision.files import atomic, sha256, versions, write_json
from rarevision.labels import LABELS
from rarevision.scores import read_studies

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


def check_submission(document: Any, frames: Frames) -> tuple[Events, list[Fault]]:
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


def check_file(path: str | Path, frames: Frames) -> tuple[Events, list[Fault]]:
    """`check` of a file; one that is no JSON is a single fault."""
    try:
        document = load(path)
    except EventsError as error:
        return {}, [Fault("", None, str(error))]
    return check_submission(document, frames)


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
        _, faults = check_file(temporary, frames)
        if faults:
            raise SubmissionError(path, faults)
        manifest.unlink(missing_ok=True)  # the old one never describes the new file
    labels = Counter(name for rows in events.values() for event in rows for name in event.labels)
    write_json(
        manifest,
        {
            "file": path.name,
            "sha256": sha256(path),
            "bytes": path.stat().st_size,
            "events": {study: len(rows) for study, rows in events.items()},
            "events per label": {name: labels[name] for name in LABELS},
            "frames": {study: list(span) for study, span in _spans(frames).items()},
            "versions": versions(),
            **facts,
        },
    )
    return manifest


def describe_submission(events: Events) -> str:
    """One line on a valid submission."""
    counts = Counter(name for rows in events.values() for event in rows for name in event.labels)
    named = ", ".join(f"{name} {counts[name]}" for name in LABELS if counts[name]) or "none of any label"
    return f"{len(events)} videos, {sum(map(len, events.values()))} events ({named})"


def read_frames(root: str | Path) -> dict[str, np.ndarray]:
    """Frame numbers of every study below a test folder, from the names of its frame files."""
    from rarevision.data.galar import read_test

    index, _ = read_test(root, progress=False)
    return {study: index.frame[index.rows(study)] for study in index.studies}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rarevision.scoring.submission", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="say OK, or list every fault")
    command.add_argument("file", help="the submission's JSON")
    known = command.add_mutually_exclusive_group(required=True)
    known.add_argument("--frames", metavar="TEST_ROOT", help="folder with <study>/frame_<number>.png")
    known.add_argument("--scores", metavar="PROBS", help="RUN_DIR/probs/test: the frame numbers of the score files")
    options = parser.parse_args(arguments)
    try:
        if options.frames:
            frames = read_frames(options.frames)
        else:
            frames = {s.study: s.frame for s in read_studies(options.scores)}
    except (ValueError, OSError) as error:
        print(f"error: the test frames cannot be read: {error}", file=sys.stderr)
        return 2
    events, faults = check_file(options.file, frames)
    if not faults:
        print(f"OK: {options.file}: {describe_submission(events)}")
        return 0
    for fault in faults:
        print(f"{options.file}: {fault}")
    print(f"{len(faults)} fault{'s' * (len(faults) > 1)} in {options.file}")
    return 1


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends quietly
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still shows the rest
    sys.exit(main())
