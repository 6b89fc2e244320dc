"""The challenge's JSON file of events: written, read, and every fault of it found and placed.

{"videos": [{"video_id": "ukdd_navi_00051", "events": [{"start": 49, "end": 58, "label": ["mouth"]}]}]}
"""

import contextlib
import functools
import gc
import gzip
import json
import operator
import reprlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rarevision.errors import nearest
from rarevision.events import MAX_FRAME, Event, Events, EventsError
from rarevision.files import atomic
from rarevision.labels import COLUMN, LABELS, normalise

EVENT_KEYS = ("start", "end", "label")


class Fault(NamedTuple):
    """One thing wrong with an events document; `video` is "" and `event` None where the fault is not inside one.

    `event` counts from 1; the text also gives the JSON index.
    """

    video: str
    event: int | None
    reason: str

    def __str__(self) -> str:
        place = [f"video {self.video}"] if self.video else []
        place += [f"event {self.event} (events[{self.event - 1}])"] if self.event is not None else []
        return f"{', '.join(place)}: {self.reason}" if place else self.reason


def write_events(path: str | Path, events: Events) -> None:
    """Write the challenge's JSON, one event a line, in the given order; `submission.write` also checks it."""
    videos = []
    for video, rows in events.items():
        lines = []
        for start, end, labels in rows:
            if isinstance(labels, str):
                raise EventsError(f"video {video}: labels must be a tuple of names, not the string {labels!r}")
            values = operator.index(start), operator.index(end), list(labels)
            lines.append(json.dumps(dict(zip(EVENT_KEYS, values, strict=True))))
        body = ",\n".join(lines)
        videos.append(f'{{"video_id": {json.dumps(video)}, "events": [' + (f"\n{body}\n" if lines else "") + "]}")
    with atomic(path) as temporary:
        temporary.write_text('{"videos": [\n' + ",\n".join(videos) + "\n]}\n", encoding="utf-8")


def read_events(path: str | Path) -> Events:
    """Events in file order of a .json (or .json.gz) file that fits the format exactly.

    Else `EventsError` with the place of the first fault.
    Accepted because the metric defines them: unsorted, overlapping and doubled events, empty label lists, a label named
    twice in one event. Whether events suit a test set's frames is the question of `submission`.
    """
    try:
        with _no_collection():
            events, faults = examine(load(path))
    except EventsError as error:
        raise EventsError(str(error), file=path) from None
    if faults:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise EventsError(f"{faults[0]}{more}", file=path)
    return events


def load(path: str | Path) -> Any:
    """The JSON document in a .json or .json.gz file; `EventsError` says in one line why there is none."""
    try:
        data = Path(path).read_bytes()
        return parse(gzip.decompress(data) if Path(path).suffix == ".gz" else data)
    except (OSError, EOFError, zlib.error) as error:
        raise EventsError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cycle collector, which takes half the time of reading 100,000 events and finds nothing there."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Doubled(dict):
    """A JSON object that names a key twice; `keys_twice` are those keys."""

    keys_twice: list[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    doubled = _Doubled(table)
    doubled.keys_twice = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
    return doubled


def _refuse_constant(name: str) -> None:
    raise EventsError(f"not valid JSON: {name} is not a JSON number")


def parse(data: bytes) -> Any:
    """The JSON document in `data`; `EventsError` says in one line why it is none."""
    if not data.strip():
        raise EventsError("the file is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EventsError(f"not UTF-8 text: byte {error.start} cannot be decoded") from None
    if text.startswith("\ufeff"):
        raise EventsError("starts with a byte-order mark, which JSON readers refuse; save as UTF-8 without BOM")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise EventsError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise EventsError("not an events file: nested too deeply") from None
    except ValueError as error:
        if isinstance(error, EventsError):
            raise
        raise EventsError(f"not an events file: {error}") from None  # an integer of thousands of digits


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 60


def show(value: Any) -> str:
    """A short repr, safe for hostile values: long, deeply nested, unprintable."""
    return _brief.repr(value)


@functools.lru_cache(maxsize=1024)
def _label_fault(name: str) -> str:
    """Why `name` is not a label, "" if it is one."""
    if name in COLUMN:
        return ""
    return f"unknown label {show(name)}; {nearest(normalise(name), LABELS)}"


def _shape(value: Any, keys: tuple[str, ...], what: str) -> list[str]:
    """Faults of a JSON object that must have exactly `keys`."""
    if not isinstance(value, dict):
        return [f"{what} must be an object with {', '.join(map(repr, keys))}, not {show(value)}"]
    reasons = [f"{what} names {show(key)} twice" for key in getattr(value, "keys_twice", ())]
    reasons += [f"{what} has no {key!r}" for key in keys if key not in value]
    reasons += [f"{what} has an unknown key {show(k)}; {nearest(k, keys)}" for k in value.keys() - set(keys)]
    return sorted(reasons)


def _event_faults(event: Any) -> list[str]:
    """Every fault of one event, in words."""
    reasons = _shape(event, EVENT_KEYS, "the event")
    if not isinstance(event, dict):
        return reasons
    whole = []
    for key in ("start", "end"):
        if key in event:
            value = event[key]
            if type(value) is not int:
                reasons.append(f"{key!r} must be an integer, not {show(value)}")
            elif not 0 <= value <= MAX_FRAME:
                reasons.append(f"{key!r} = {show(value)} is not a frame number (0..{MAX_FRAME})")
            else:
                whole.append(value)
    if len(whole) == 2 and whole[0] > whole[1]:
        reasons.append(f"start {whole[0]} comes after end {whole[1]}")
    if "label" in event:
        names = event["label"]
        if not isinstance(names, list):
            hint = f"; write [{show(names)}]" if isinstance(names, str) else ""
            reasons.append(f"'label' must be a list of names, not {show(names)}{hint}")
        else:
            for name in names:
                reason = _label_fault(name) if isinstance(name, str) else f"label {show(name)} is not a string"
                reasons += [reason] if reason else []
    return reasons


def examine(document: Any, inspect: Callable[[str, int, Event], list[str]] | None = None) -> tuple[Events, list[Fault]]:
    """Events of a JSON document and every place where it departs from the format; faulty events are left out.

    `inspect(study, number, event)` may add reasons of its own against an event that fits the format.
    """
    events: Events = {}
    faults = [Fault("", None, reason) for reason in _shape(document, ("videos",), "the document")]
    videos = document.get("videos", []) if isinstance(document, dict) else []
    if not isinstance(videos, list):
        faults.append(Fault("", None, f"'videos' must be a list, not {show(videos)}"))
        videos = []
    known: set[tuple[str, ...]] = set()  # label lists already found in order
    for index, video in enumerate(videos):
        place = f"{index + 1} (videos[{index}])"
        study: Any = video.get("video_id") if isinstance(video, dict) else None
        named = isinstance(study, str) and study.isprintable() and 0 < len(study) <= 200
        reasons = _shape(video, ("video_id", "events"), "the video")
        if isinstance(video, dict) and "video_id" in video and not named:
            reasons.append(f"'video_id' must be a printable, non-empty string, not {show(study)}")
        if named and study in events:
            reasons.append(f"video_id {study!r} is there a second time, as video {place}; give each video once")
        rows = video.get("events", []) if isinstance(video, dict) else []
        if not isinstance(rows, list):
            reasons.append(f"'events' must be a list, not {show(rows)}")
            rows = []
        place = study if named else place
        faults += [Fault(place, None, reason) for reason in reasons]
        kept = events.setdefault(study, []) if named else []
        for number, row in enumerate(rows, 1):
            event = _quick(row, known)
            found = [] if event else _event_faults(row)
            if not event and not found:
                event = Event(row["start"], row["end"], tuple(row["label"]))
                known.add(event.labels)
            if event and inspect and named:
                found = inspect(study, number, event)
            faults += [Fault(place, number, reason) for reason in found]
            if event and not found:
                kept.append(event)
    return events, faults


def _quick(row: Any, known: set[tuple[str, ...]]) -> Event | None:
    """The event of a row that is plainly in order, else None: 100,000 rows are judged in a tenth of a second."""
    if type(row) is not dict or len(row) != 3 or type(row.get("label")) is not list:
        return None
    start, end, names = row.get("start"), row.get("end"), tuple(row["label"])
    try:
        if type(start) is int and type(end) is int and 0 <= start <= end <= MAX_FRAME and names in known:
            return Event(start, end, names)
    except TypeError:  # a list or an object among the names
        pass
    return None
