"""The decoders' figures on the real timelines of the 80 Galar studies with simulated scores, out of fold.

    python benchmarks/timelines.py TIMELINES [--qualities seed,plus1,plus2] [--seeds 0,1,2] [--methods paper,ours]
                                   [--folds 5] [--fold-seed 42] [--json FILE]
    python benchmarks/timelines.py TIMELINES --network all,missed,bursts --studies 4,8,16,32,80 --folds 4

TIMELINES is a folder with `galar_events.json.gz` and `simulate_scores.py` (the organisers' sample events, a simulator
of frame scores with a stated AUC per label), for `--network` also `network_scores.py` (scores with a network's errors:
missed events, confident false runs, a bias of the study, confused regions and others). Scores are held as float16, as
score files may be. Of `--network` each line compares silence, thresholds chosen for the event metric, the learned
decoder alone, and `ours`, which chooses among the three per label; `worst` is what `ours` gains at the worse tIoU over
the better of silence - 0.005 and thresholds - 0.01, so it should not be negative.
"""

import argparse
import dataclasses
import importlib.util
import json
from pathlib import Path

import decoding as benchmark  # benchmarks/decoding.py, beside this file
import numpy as np

from rarevision import config
from rarevision.decoding import cross_validate
from rarevision.scores import StudyScores

METHODS = {
    "thresholds": config.Decode(method="paper", compose="per_label"),
    "learned": config.Decode(method="ours", compose="auto", choose=False),
    "ours": config.Decode(method="ours", compose="auto"),
}


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated(folder: Path, quality: str, seed: int, every: int = 1) -> list[StudyScores]:
    """The same scores as the simulator's command line writes, rounded to float16; of one study in `every`."""
    simulator = load(folder / "simulate_scores.py")
    studies = []
    for study, first, labels in list(simulator.timelines(folder / "galar_events.json.gz"))[::every]:
        rng = np.random.default_rng([seed, int(study), sorted(simulator.EXTRA).index(quality)])
        probs = simulator.simulate(labels, simulator.EXTRA[quality], rng).astype(np.float16).astype(np.float32)
        studies.append(StudyScores(study, np.arange(first, first + len(labels), dtype=np.int32), probs, labels))
    return studies


def network(folder: Path, kind: str, n: int, seed: int, extra: float = 1.0) -> list[StudyScores]:
    """Scores with a network's errors on `n` studies; d' is `extra` above the published AUCs."""
    module = load(folder / "network_scores.py")
    drawn = module.draw(kind, n, seed, extra, module.load_sim())
    return [StudyScores(study, frame, probs.astype(np.float32), labels) for study, frame, probs, labels in drawn]


def compare(folder: Path, kinds: list[str], sizes: list[int], seeds: list[int], folds: int, fold_seed: int) -> dict:
    """One line per kind, number of studies and seed: mAP@0.5 and @0.95 of each method, present labels, events."""
    results = {}
    for n, seed, kind in ((n, seed, kind) for n in sizes for seed in seeds for kind in kinds):
        studies, row = network(folder, kind, n, seed), {}
        for name, decode in METHODS.items():
            decode = dataclasses.replace(decode, folds=folds, seed=fold_seed)
            cfg = dataclasses.replace(config.Config(), decode=decode, threshold=config.Threshold(method="event"))
            _, result, report = cross_validate(studies, cfg)
            row |= {
                name: list(result.score),
                f"{name}, present": report["present"],
                f"{name}, events": report["events"],
            }
        row["silence"] = result.empty
        bars = [max(row["silence"] - 0.005, t - 0.01) for t in row["thresholds"]]
        row["worst"] = min(o - bar for o, bar in zip(row["ours"], bars, strict=True))
        row["distinct"] = report["distinct"]
        show = lambda values: "/".join(f"{v:.3f}" for v in values)  # noqa: E731
        print(
            f"{kind:9s} {n:2d} studies, seed {seed}: silence {row['silence']:.3f}"
            + "".join(f"  {name} {show(row[name])}" for name in METHODS)
            + f"  present {show(row['ours, present'])}  worst {row['worst']:+.3f}"
            + f"  events a study {row['ours, events']:.0f}; distinct {row['distinct']['events']:.0f}"
            + f" at {show(row['distinct']['score'])}",
            flush=True,
        )
        results[f"{kind}-{n}-{seed}"] = row
    print(f"worst of all: {min(row['worst'] for row in results.values()):+.3f}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--qualities", default="seed,plus1,plus2")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default="paper,ours")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--fold-seed", type=int, default=42)
    parser.add_argument("--network", help="kinds of network_scores.py instead of qualities")
    parser.add_argument("--studies", default="4,8,16,32,80")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    if options.network:
        sizes, seeds = ([int(v) for v in given.split(",")] for given in (options.studies, options.seeds))
        kinds = options.network.split(",")
        results = compare(options.folder, kinds, sizes, seeds, options.folds, options.fold_seed)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
        return
    for seed in map(int, options.seeds.split(",")):
        for quality in options.qualities.split(","):
            studies = simulated(options.folder, quality, seed)
            print(f"\nquality {quality}, simulation seed {seed}")
            found = benchmark.out_of_fold(studies, options.methods.split(","), options.folds, options.fold_seed)
            benchmark.show(found)
            results[f"{quality}-{seed}"] = found
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
