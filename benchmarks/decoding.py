"""Out-of-fold table of `empty`, `paper`, `ours` and `screen` for any run, with intervals; how fast the decoders are.

    python benchmarks/decoding.py RUN_DIR [--folds 5] [--seed 42] [--methods paper,ours,screen] [--json FILE]
                                  [--recall 0.9]
    python benchmarks/decoding.py --speed

RUN_DIR needs probs/oof and labels/oof only. `--speed` makes up a study of 130,000 frames and needs nothing; times are
wall-clock seconds, so set OMP_NUM_THREADS=1 and let the machine be idle.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np

from rarevision import config
from rarevision.decoding import cross_validate, fit_decoder, published_events, truth_events
from rarevision.labels import N_LABELS, REGIONS
from rarevision.scores import StudyScores, read_studies
from rarevision.scoring import bootstrap_intervals, score_events

THRESHOLD = config.Threshold(method="f1")  # of `paper`: best F1, each score a possible threshold
SETTINGS = {"paper": {"compose": "label_set"}, "ours": {"compose": "auto"}, "screen": {"compose": "per_label"}}
ROWS = ("score mAP@0.5", "score mAP@0.95", "present labels only mAP@0.5", "present labels only mAP@0.95")


def out_of_fold(
    studies: list[StudyScores], methods: list[str], folds: int, seed: int, recall: float = 0.9
) -> dict[str, dict]:
    """Per method: measures with intervals, the gain over silence per fold, and seconds; `screen`: asked and got."""
    truth = truth_events(studies)
    results: dict[str, dict] = {}
    for method in ("empty", *methods):
        started, report = time.perf_counter(), {"folds": [], "events": 0.0}
        result = score_events(truth, {study: [] for study in truth})
        if method != "empty":
            decode = config.Decode(method=method, folds=folds, seed=seed, screen_recall=recall, **SETTINGS[method])
            cfg = dataclasses.replace(config.Config(), threshold=THRESHOLD, decode=decode)
            _, result, report = cross_validate(studies, cfg)
        table = bootstrap_intervals(result).loc[list(ROWS)]
        gains = [[s - f["empty"] for s in f["score"]] for f in report["folds"]]
        results[method] = {"measures": table.to_dict("index"), "gain per fold": gains}
        results[method] |= {key: report[key] for key in ("events", "screen", "distinct", "choice") if key in report}
        results[method]["seconds"] = time.perf_counter() - started
    return results


def show(results: dict[str, dict]) -> None:
    print(f"{'':8s}" + "".join(f"{row:>32s}" for row in ROWS) + f"{'worst fold - silence':>24s}{'seconds':>9s}")
    for method, result in results.items():
        cells = [f"{m['value']:.4f} ({m['low']:.4f} to {m['high']:.4f})" for m in result["measures"].values()]
        worst = np.min(result["gain per fold"], axis=0) if result["gain per fold"] else [0.0, 0.0]
        cells = "".join(f"{c:>32s}" for c in cells)
        print(f"{method:8s}{cells}{f'{worst[0]:+.4f} {worst[1]:+.4f}':>24s}{result['seconds']:9.0f}", flush=True)
        if "distinct" in result:
            single = result["distinct"]
            print(
                f"        {result['events']:.0f} events a study; at most one per stretch and label:"
                f" {single['events']:.0f}, {single['score'][0]:.4f} / {single['score'][1]:.4f}"
            )
            for name, row in result.get("choice", {}).items():
                gains = " ".join(f"{source} {row[f'gain, {source}']:+.3f}" for source in ("threshold", "learned"))
                folds = ", ".join(f"{s} in {row[s]}" for s in ("silence", "threshold", "learned") if row[s])
                print(f"        {name:20s} expected gain over silence: {gains}; taken, of the folds: {folds}")
        if "screen" in result:
            got = result["screen"]
            print(f"        recall asked {got['asked']}, got {got['recall']:.3f} on {got['share']:.1%} of the frames")


def made_up(frames: int, seed: int = 0) -> StudyScores:
    """A study of `frames` frames with all regions and findings, and noisy scores of it."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((frames, N_LABELS), np.uint8)
    labels[np.arange(frames), np.searchsorted([20, 50, frames // 20, frames // 2], np.arange(frames), "right")] = 1
    for c in range(len(REGIONS), N_LABELS):
        for start in rng.integers(0, frames - 40, 40):
            labels[start : start + rng.integers(2, 40), c] = 1
    noise = rng.standard_normal((frames, N_LABELS))
    probs = 1 / (1 + np.exp(3 - 5 * labels - noise))
    return StudyScores(str(seed), np.arange(frames, dtype=np.int32), probs.astype(np.float32), labels)


def literal(probs: np.ndarray, thresholds: np.ndarray, median: int, max_gap: int, min_length: int) -> np.ndarray:
    """The published cleaning as a loop over frames; labels uint8 [T, 17]."""
    frames, out = len(probs), np.zeros(probs.shape, np.uint8)
    for c in range(probs.shape[1]):
        mask = [bool(p >= t) for p, t in zip(probs[:, c], np.full(frames, thresholds[c], np.float32), strict=True)]
        half, smooth = median // 2, []
        for t in range(frames):
            window = 0
            for u in range(t - half, t + half + 1):
                window += mask[-u - 1 if u < 0 else 2 * frames - u - 1 if u >= frames else u]
            smooth.append(window > half)
        last = None
        for t in range(frames):
            if smooth[t]:
                if last is not None and t - last - 1 <= max_gap:
                    for u in range(last + 1, t):
                        smooth[u] = True
                last = t
        start = None
        for t in range(frames + 1):
            if t < frames and smooth[t]:
                start = t if start is None else start
            elif start is not None:
                if t - start >= min_length:
                    out[start:t, c] = 1
                start = None
    return out


def speed() -> None:
    training, study = [made_up(5_000, seed) for seed in range(1, 9)], made_up(130_000)
    values = np.full(N_LABELS, 0.5)
    started = time.perf_counter()
    published_events(study.frame, study.probs, values)
    fast = time.perf_counter() - started
    started = time.perf_counter()
    literal(study.probs, values, 7, 5, 3)
    slow = time.perf_counter() - started
    print(f"paper: {fast:.3f} s for 130,000 frames; the loop over frames {slow:.1f} s, {slow / fast:.0f} times as long")
    decoder = fit_decoder(training, dataclasses.replace(config.Config(), decode=config.Decode(method="ours")))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        decoder.decode(study.frame, study.probs)
        times.append(time.perf_counter() - started)
    print(f"ours: {min(times):.2f} s for 130,000 frames (best of 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, nargs="?")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--methods", default="paper,ours")
    parser.add_argument("--recall", type=float, default=0.9, help="that `screen` is asked for")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    if options.run_dir is None:
        parser.error("give a RUN_DIR, or --speed")
    studies = read_studies(options.run_dir / "probs" / "oof", options.run_dir / "labels" / "oof")
    results = out_of_fold(studies, options.methods.split(","), options.folds, options.seed, options.recall)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
