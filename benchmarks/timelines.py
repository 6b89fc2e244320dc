"""The decoders' figures on the real timelines of the 80 Galar studies with simulated scores, out of fold.

    python benchmarks/timelines.py TIMELINES [--qualities seed,plus1,plus2] [--seeds 0,1,2] [--methods paper,ours]
                                   [--folds 5] [--fold-seed 42] [--json FILE]

TIMELINES is a folder with `galar_events.json.gz` and `simulate_scores.py` (the organisers' sample events, a simulator
of frame scores with a stated AUC per label). Scores are held as float16, as score files may be.
"""

import argparse
import importlib.util
import json
from pathlib import Path

import decoding as benchmark  # benchmarks/decoding.py, beside this file
import numpy as np

from rarevision.scores import StudyScores


def simulated(folder: Path, quality: str, seed: int, every: int = 1) -> list[StudyScores]:
    """The same scores as the simulator's command line writes, rounded to float16; of one study in `every`."""
    spec = importlib.util.spec_from_file_location("simulate_scores", folder / "simulate_scores.py")
    simulator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulator)
    studies = []
    for study, first, labels in list(simulator.timelines(folder / "galar_events.json.gz"))[::every]:
        rng = np.random.default_rng([seed, int(study), sorted(simulator.EXTRA).index(quality)])
        probs = simulator.simulate(labels, simulator.EXTRA[quality], rng).astype(np.float16).astype(np.float32)
        studies.append(StudyScores(study, np.arange(first, first + len(labels), dtype=np.int32), probs, labels))
    return studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--qualities", default="seed,plus1,plus2")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default="paper,ours")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--fold-seed", type=int, default=42)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
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
