"""What each part of the learned decoder earns: its score out of fold with that part taken away.

    python benchmarks/parts.py TIMELINES [--quality plus1] [--seed 0] [--every 4] [--folds 5] [--json FILE]

TIMELINES is the folder that `benchmarks/timelines.py` reads; one study in `--every` of its 80 is used. Each line is one
whole cross-validation in which a single part is replaced by the plainest thing that could stand in its place.
This command takes the decoder apart, so unlike all others it reaches behind the door of `rarevision.decoding`.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import timelines  # benchmarks/timelines.py, beside this file

from rarevision import config
from rarevision.decoding import calibration, cross_validate, learned, posteriors, presence, structure
from rarevision.decoding.learned import LearnedDecoder
from rarevision.decoding.presence import Presence
from rarevision.labels import N_LABELS

propose = learned.propose
# What is taken away: the object and the attribute that is replaced, and the replacement.
WITHOUT: dict[str, tuple[Any, str, Any]] = {
    "memory of the scores (frames count as independent)": (calibration, "_memory", lambda *_: (0.7, 0.0)),
    "base of each study's logits": (calibration, "subtract_baseline", lambda x, columns: x),
    "heavy tails (normal densities)": (calibration, "FREEDOMS", (100.0,)),
    "bins beside the curves": (calibration, "MIN_GAIN", np.inf),
    "weight on the regions' evidence": (posteriors, "REGION_WEIGHTS", (1.0,)),
    "price of a change of region": (posteriors, "PRICE", np.where(np.isfinite(posteriors.PRICE), 0.0, -np.inf)),
    "place of onsets": (structure, "_onsets", lambda _: np.zeros((N_LABELS - 5, structure.CONTEXTS))),
    "learned P(present) (prevalence alone)": (presence, "fit_presence", lambda *_: presence.unknown()),
    "learned P(hit) (mean posterior instead)": (Presence, "hits", lambda self, column, p: p.facts[:, 3]),
    "correction of the expected AP": (presence, "fit_ap_factor", lambda *_: np.ones(4)),
    "silence": (LearnedDecoder, "silent", lambda self, found: np.zeros(N_LABELS, bool)),
    "doubtful events": (learned, "propose", lambda *given: [p.sure() for p in propose(*given)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quality", default="plus1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    studies = timelines.simulated(options.folder, options.quality, options.seed, options.every)
    results: dict[str, list[float]] = {}

    def line(name: str, compose: str = "auto") -> None:
        decode = config.Decode(method="ours", compose=compose, folds=options.folds, choose=False)
        started = time.perf_counter()
        _, _, report = cross_validate(studies, dataclasses.replace(config.Config(), decode=decode))
        score, whole = report["score"], results.setdefault("the whole decoder", report["score"])
        results[name] = score
        change = [s - w for s, w in zip(score, whole, strict=True)]
        print(
            f"{name:52s}{score[0]:8.4f}{score[1]:8.4f}   {change[0]:+.4f} {change[1]:+.4f}"
            f"{time.perf_counter() - started:7.0f} s",
            flush=True,
        )

    print(f"quality {options.quality}, seed {options.seed}, {len(studies)} studies: mAP@0.5, @0.95, and the change")
    line("the whole decoder")
    for name, (where, attribute, other) in WITHOUT.items():
        with patch.object(where, attribute, other):
            line(f"without {name}")
    line("without events cut by label set", compose="per_label")
    line("without whole runs", compose="label_set")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
