"""Time of the score against the literal metric: all studies, a fragmented prediction of 100,000 events.

    python benchmarks/scoring.py [TRUTH.json[.gz]]

TRUTH is best the organisers' events of the 80 Galar studies; without it, timelines of the same size are made up. Both
versions score at tIoU 0.5 and 0.95 from events in memory; reading the two files is timed apart and in the total. Times
are CPU seconds of one thread.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rarevision.event_files import read_events, write_events
from rarevision.events import Event, Events, from_label_sets
from rarevision.labels import COLUMN, LABELS, REGIONS
from rarevision.scoring import score_events

THRESHOLDS = (0.5, 0.95)
SHARE = (0.02, 0.06, 0.5, 0.2, 0.04, 0.03, 0.05, 0.08, 0.02)  # of the findings' events, in the order of LABELS


def literal_tiou(a: tuple[int, int], b: tuple[int, int]) -> float:
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]) + 1)
    return shared / ((a[1] - a[0] + 1) + (b[1] - b[0] + 1) - shared)


def literal_ap(truth: list, predicted: list, threshold: float) -> float:
    if not truth:
        return 0.0 if predicted else 1.0
    free, hits, total = list(truth), 0, 0.0
    for n, p in enumerate(predicted, 1):
        match = next((g for g in free if literal_tiou(p, g) >= threshold), None)
        if match is not None:
            free.remove(match)
            hits += 1
            total += hits / n
    return total / len(truth)


def literal_score(truth: Events, prediction: Events, threshold: float) -> float:
    """The metric as its definition tells it, one event after the other."""
    total = 0.0
    for study in truth:
        rows = []
        for events in (truth[study], prediction[study]):
            table = {name: [] for name in LABELS}
            for start, end, labels in events:
                for name in labels:
                    table[name].append((start, end))
            rows.append(table)
        total += sum(literal_ap(rows[0][name], rows[1][name], threshold) for name in LABELS) / len(LABELS)
    return total / len(truth)


def made_up(studies: int = 80, events: int = 25_000, seed: int = 0) -> Events:
    """Timelines of about the real ones' size: regions in order, findings that flicker on top of them."""
    rng = np.random.default_rng(seed)
    truth = {}
    for study, share in enumerate(rng.dirichlet(np.full(studies, 0.15))):
        length = int(rng.integers(4_000, 90_000))
        labels = np.zeros((length, len(LABELS)), np.uint8)
        cuts = np.append(np.sort(rng.integers(1, length, len(REGIONS) - 1)), length)
        for first, last, name in zip(np.append(0, cuts[:-1]), cuts, REGIONS, strict=True):
            labels[first:last, COLUMN[name]] = 1
        for start in rng.integers(0, length, int(share * events / 2)):
            labels[
                start : start + rng.geometric(0.12),
                rng.choice(range(8, 17), p=SHARE),
            ] = 1
        truth[str(study + 1)] = from_label_sets(np.arange(length), labels)
    return truth


def fragmented(truth: Events, events: int = 100_000, seed: int = 0) -> Events:
    """Random pieces of every true event, exactly `events` in all; of half of the events one piece is the whole."""
    rng = np.random.default_rng(seed)
    rows = [(study, event) for study, listed in truth.items() for event in listed]
    length = np.array([e.end - e.start + 1 for _, e in rows], float)
    weight = np.sqrt(length)  # long events break into more pieces
    pieces = 1 + rng.multinomial(events - len(rows), weight / weight.sum())
    prediction: Events = {study: [] for study in truth}
    for (study, event), n in zip(rows, pieces.tolist(), strict=True):
        bounds = np.sort(rng.integers(event.start, event.end + 1, 2 * n)).reshape(n, 2)
        if rng.random() < 0.5:
            bounds[np.argmax(bounds[:, 1] - bounds[:, 0])] = event.start, event.end
        prediction[study] += [Event(a, b, event.labels) for a, b in bounds.tolist()]
    return prediction


def timed(function, repeat: int = 5):
    """Fewest CPU seconds of a few tries, and the result; on a quiet machine these are the clock's seconds."""
    times = []
    for _ in range(repeat):
        began = time.process_time()
        result = function()
        times.append(time.process_time() - began)
    return min(times), result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("truth", nargs="?", help="events JSON of the truth")
    parser.add_argument("--events", type=int, default=100_000, help="in the prediction")
    options = parser.parse_args()
    truth = read_events(options.truth) if options.truth else made_up()
    prediction = fragmented(truth, options.events)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("truth.json", "prediction.json")]
        for path, events in zip(paths, (truth, prediction), strict=True):
            write_events(path, events)
        reading, (truth, prediction) = timed(lambda: [read_events(path) for path in paths])
    n_true, n_predicted = (sum(map(len, events.values())) for events in (truth, prediction))
    source = options.truth or "made up"
    print(f"{len(truth)} studies, {n_true:,} true and {n_predicted:,} predicted events ({source})")
    scoring, fast = timed(lambda: list(score_events(truth, prediction, thresholds=THRESHOLDS).score))
    reporting, _ = timed(lambda: score_events(truth, prediction, thresholds=THRESHOLDS).as_dict())
    literally, slow = timed(lambda: [literal_score(truth, prediction, t) for t in THRESHOLDS], 1)
    print(f"read both files, checked   {reading:8.3f} s")
    print(
        f"score, both thresholds     {scoring:8.3f} s   {literally / scoring:,.0f} times as fast as the literal version"
    )
    print(f"full report                {reporting:8.3f} s   {literally / reporting:,.0f} times")
    print(f"read and report            {reading + reporting:8.3f} s   (to be under 1 s)")
    print(f"literal version            {literally:8.1f} s   (events in memory, both thresholds)")
    print(f"mAP@0.5 {fast[0]:.6f}  mAP@0.95 {fast[1]:.6f}")
    if fast != slow:
        print(f"DIFFERENT from the literal version: {slow}")
        return 1
    print("equal to the literal version to the last bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
