"""The ablation: one factor changed at a time, over seeds, against one base; a table with mean and spread, one figure.

    rarevision ablate --config configs/demo.toml --out docs

Each file of configs/ablations holds what one variant changes: `<factor>-<variant>.toml`; `base.toml` what all share on
top of --config. Seed k trains on the split's fold k: so the spread is over seeds and studies both, and differences
to the base, paired by seed, are over seeds that saw the same studies. Finished trainings are kept: run it again.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rarevision import events, scores
from rarevision.config import Config, config_from_dict, merged
from rarevision.data import Splits, open_reader, read_galar, read_test
from rarevision.event_files import read_events
from rarevision.files import atomic, fingerprint, read_toml
from rarevision.model import text_embeddings
from rarevision.run.notebook import project_path
from rarevision.scoring import frame_ap
from rarevision.training import load_model, predict_studies, train_fold

BASE = "base"
KEY = """Average precision, mean and standard deviation over seeds (each trains on another fold); in brackets the
difference to `base` with the same seed. `base` is the config with `configs/ablations/base.toml`; every other row
changes what the file of its name says. AP, anatomy and findings are out of fold; `other system`: test studies."""
MEASURES = {"ap": "AP", "ap_anatomy": "anatomy", "ap_findings": "findings", "ap_test": "other system"}


def variants(config: Path, folder: Path) -> dict[str, Config]:
    """Name -> configuration: `base` first, then every other file of the folder over it."""
    tables = {path.stem: read_toml(path) for path in sorted(folder.glob("*.toml"))}
    shared = merged(read_toml(config), tables.pop(BASE, {}))
    return {
        name: config_from_dict({"name": name, **merged(shared, table)}, folder / f"{name}.toml")
        for name, table in {BASE: {}, **tables}.items()
    }


class Trials:
    """Trains and measures variants; frames are read once for all that see them alike."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.sources: dict[tuple, tuple] = {}

    def measure(self, name: str, config: Config, seed: int) -> dict[str, Any]:
        """One line of the result: last epoch's out-of-fold values, and AP on the labelled test studies if any."""
        source = (config.data, config.split)
        if source not in self.sources:
            self.sources[source] = self._read(config)
        (index, reader), test, parts, key = self.sources[source]
        fold = seed % parts.n_folds
        config = replace(config, train=replace(config.train, seed=config.train.seed + seed))
        text = text_embeddings(config.model) if config.model.contrastive else None
        folder = self.run_dir / name / str(seed)
        history = train_fold(config, index, reader, parts, fold, text, folder, key, progress=False)
        line = {"variant": name, "seed": seed, **history.iloc[-1][["ap", "ap_anatomy", "ap_findings"]]}
        return line | ({"ap_test": self._test(config, folder, fold, *test)} if test else {})

    def _read(self, config: Config) -> tuple:
        data, root = config.data, project_path(config.data.root)
        index, _ = read_galar(root, data.labels, data.missing_labels, progress=False)
        test = None
        if data.test_truth:
            other, _ = read_test(project_path(data.test_root), progress=False)
            truth = read_events(project_path(data.test_truth))
            test = other, open_reader(other, data), truth
        return (index, open_reader(index, data)), test, Splits.make(index, config.split), fingerprint(root)

    def _test(self, config: Config, folder: Path, fold: int, index, reader, truth) -> float:
        one, identity = load_model(folder, fold, "last")
        predict_studies([one], index, reader, list(truth), folder / "test", config, None, identity, progress=False)
        studies = []
        for study, listed in truth.items():
            frame, probs = scores.read_probs(folder / "test" / f"{study}.npz")
            studies.append((events.to_labels(frame, listed), probs))
        labels, probs = (np.concatenate(part) for part in zip(*studies, strict=True))
        return float(np.nanmean(frame_ap(labels, probs)))


def ablation_summary(results: pd.DataFrame) -> pd.DataFrame:
    """Per variant and measure: mean, standard deviation over seeds, and the paired difference to the base with its own.

    results: columns variant, seed and some of `MEASURES`; a seed missing from variant or base is left out of the pairs.
    """
    measures = [m for m in MEASURES if m in results]
    base = results[results.variant == BASE].set_index("seed")[measures]
    lines = {}
    for name, part in results.groupby("variant", sort=False):
        values = part.set_index("seed")[measures].astype(float)
        paired = (values - base).dropna(how="all")
        lines[name] = {"seeds": len(values)}
        for m in measures:
            lines[name] |= {m: values[m].mean(), f"{m} sd": values[m].std(ddof=1)}
            if name != BASE:
                lines[name] |= {f"{m} diff": paired[m].mean(), f"{m} diff sd": paired[m].std(ddof=1)}
    return pd.DataFrame.from_dict(lines, orient="index")


def markdown(table: pd.DataFrame) -> str:
    """A table of `mean ± sd (difference to base ± sd)` for people."""
    measures = [m for m in MEASURES if m in table]
    lines = [
        "| variant | seeds | " + " | ".join(MEASURES[m] for m in measures) + " |",
        "|---" * (len(measures) + 2) + "|",
    ]
    for name, row in table.iterrows():
        cells = []
        for m in measures:
            cell = f"{row[m]:.3f} ± {row[f'{m} sd']:.3f}"
            cells.append(cell if name == BASE else f"{cell} ({row[f'{m} diff']:+.3f} ± {row[f'{m} diff sd']:.3f})")
        lines.append(f"| {name} | {row.seeds:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def ablation_figure(results: pd.DataFrame) -> Figure:
    """Paired differences to the base, one dot per seed, one panel per measure."""
    measures = [m for m in MEASURES if m in results]
    base = results[results.variant == BASE].set_index("seed")
    names = [n for n in results.variant.unique() if n != BASE]
    size = (3 * len(measures) + 1.5, 0.3 * len(names) + 1.4)
    canvas, axes = plt.subplots(1, len(measures), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for ax, m in zip(axes.flat, measures, strict=True):
        ax.axvline(0, color="0.6", lw=1)
        for y, name in enumerate(names):
            part = results[results.variant == name].set_index("seed")
            dots = (part[m].astype(float) - base[m].astype(float)).dropna()
            ax.plot(dots, [y] * len(dots), "o", mfc="none", color="0.35", ms=5)
            ax.plot(dots.mean(), y, "D", color="#0072B2", ms=6)
        ax.set(title=MEASURES[m], xlabel="AP minus the base's")
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    canvas.suptitle("What each part is worth: mean (diamond) and seeds (circles)", x=0.01, ha="left", fontsize=11)
    return canvas


def ablate(config: Path, grid: Path, run_dir: Path, out: Path | None, seeds: int, only: str, command: str) -> str:
    """Train what is missing, write ablation.md, .csv and .png, return the table. `command`: how it was asked for."""
    chosen = {n: c for n, c in variants(config, grid).items() if n == BASE or n.startswith(only)}
    for name, each in chosen.items():
        data = replace(each.data, cache_root=str(project_path(each.data.cache_root)))
        source = project_path(each.model.source)
        found = replace(each.model, source=str(source)) if source.exists() else each.model
        chosen[name] = replace(each, data=data, model=found)
    trials, lines = Trials(run_dir), []
    out = out or run_dir
    for seed, (name, each) in itertools.product(range(seeds), chosen.items()):
        lines.append(trials.measure(name, each, seed))
        results = pd.DataFrame(lines)
        results = results.sort_values("variant", key=lambda v: v.map(list(chosen).index), kind="stable")
        with atomic(run_dir / "results.csv") as temporary:
            results.to_csv(temporary, index=False)
    with atomic(out / "ablation.csv") as temporary:
        results.round(4).to_csv(temporary, index=False)
    table = markdown(ablation_summary(results))
    with atomic(out / "ablation.md") as temporary:
        temporary.write_text(f"`{command}`\n\n{KEY}\n\n{table}")
    with atomic(out / "ablation.png") as temporary:
        ablation_figure(results).savefig(temporary, dpi=120)
    return table
