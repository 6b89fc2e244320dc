"""Choice: for each label, where its events come from: nowhere, from a threshold, or from the learned decoder.

Which of the three earns most depends on the scores and on how many studies there are to learn from. Each is therefore
tried on studies that it did not see, and its gain over silence is the average precision that it earned there less what
silence earns: 1 on a study without the label, 0 on a study with it.

A label's own gain is a mean over few studies, so it is drawn towards the gain of its group (anatomy or findings), and
the group's gain towards 0. With n studies, gain g[s, c] on study s and label c, and the mean gain G[s] over the labels
of the group:

    group gain     m = sum_s G[s] / (n + 1) - CAUTION * e      one imaginary study on which nothing is gained
    expected gain  E[c] = (sum_s g[s, c] + WEIGHT * m) / (n + WEIGHT)

e is the standard error of the group gain. The source of the highest expected gain is taken, silence where none is above
0; a threshold must be better than the learned decoder by MARGIN. With few studies all is drawn to 0, hence to silence.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rarevision import config
from rarevision.decoding import thresholds
from rarevision.decoding.learned import LearnedDecoder
from rarevision.decoding.presence import mean_ap
from rarevision.decoding.proposals import Candidates, truth_rows
from rarevision.labels import ANATOMY, LABELS, N_LABELS
from rarevision.scores import StudyScores

SOURCES = ("silence", "threshold", "learned")
GROUPS = (slice(0, len(ANATOMY)), slice(len(ANATOMY), N_LABELS))
WEIGHT = 8.0  # studies for which the gain of the group counts
CAUTION = 0.25  # standard errors by which the gain of a group is lowered
MARGIN = 0.02  # mean AP by which a threshold must be expected to beat the learned decoder


@dataclass(frozen=True)
class Choice:
    """What each label's events are taken from, and why."""

    source: tuple[str, ...]  # [17], each of SOURCES
    gain: np.ndarray  # float [2, 17] expected gain over silence, in mean AP: threshold, learned
    threshold: np.ndarray  # float32 [17] the threshold of each label, fitted for the event metric

    def of(self, source: str) -> np.ndarray:
        """Labels, bool [17], whose events come from `source`."""
        return np.array(self.source) == source

    def table(self) -> dict[str, dict[str, Any]]:
        """Per label: the source, and the gain over silence that a threshold and the learned decoder are expected to
        bring."""
        return {
            name: {"source": self.source[c], "threshold": float(self.gain[0, c]), "learned": float(self.gain[1, c])}
            for c, name in enumerate(LABELS)
        }

    def candidates(self, learned: Candidates, silent: np.ndarray, probs: np.ndarray, cfg: config.Decode) -> Candidates:
        """What is listed of one study: the learned decoder's candidates of its labels, and runs above thresholds.

        `silent` bool [17]: labels on which the learned decoder keeps silent in this study; `probs` [T, 17]. A run's
        mean score stands for its probability of being a hit.
        """
        keep = self.of("learned") & ~silent
        out = learned.kept(keep[learned.column])
        for c in np.flatnonzero(self.of("threshold")):
            rows, mean = thresholds.ranked_runs(probs[:, c], float(self.threshold[c]), cfg)
            out = out.joined(int(c), rows, mean)
        return out


def expected_gain(gain: np.ndarray) -> np.ndarray:
    """E of the module's text, float [17], from gains [n, 17] on n studies that the source did not see."""
    n, out = len(gain), np.empty(N_LABELS)
    for group in GROUPS:
        studies = np.append(gain[:, group].mean(1), 0.0)
        mean = studies.mean() - CAUTION * studies.std(ddof=1) / np.sqrt(len(studies))
        out[group] = (gain[:, group].sum(0) + WEIGHT * mean) / (n + WEIGHT)
    return out


def choose(gain: np.ndarray) -> tuple[str, ...]:
    """Source of each label from expected gains [2, 17]: threshold, learned."""
    scores = np.stack([np.zeros(N_LABELS), gain[0] - MARGIN, gain[1]])
    return tuple(SOURCES[i] for i in scores.argmax(0))


def fit_choice(
    studies: list[StudyScores], fitted: LearnedDecoder, out_of_fold: list[Candidates], cfg: config.Decode
) -> Choice:
    """Choose from what thresholds and the learned decoder earn on `studies`.

    `out_of_fold`: the learned decoder's candidates of each study from a fit without it. A threshold is tried on each
    study as it would have been chosen on all others. A single study has no others, so all labels are silent.
    """
    truths = [truth_rows(np.asarray(s.labels)) for s in studies]
    silence = np.array([[float(not len(t)) for t in truth] for truth in truths])
    learned = silence.copy()
    for s, found in enumerate(out_of_fold):
        for c in np.flatnonzero(~fitted.silent(found)):
            learned[s, c] = mean_ap(truths[s][c], found.rows[found.column == c])
    threshold, cut = np.empty_like(silence), np.full(N_LABELS, thresholds.NEVER, np.float32)
    for column in range(N_LABELS):
        values, earned = thresholds.event_table(studies, column, [truth[column] for truth in truths], cfg)
        options = np.column_stack([silence[:, column], earned])  # NEVER first, so that ties end there
        cut[column] = np.append(thresholds.NEVER, values)[options.sum(0).argmax()]
        others = options.sum(0) - options
        threshold[:, column] = options[np.arange(len(studies)), others.argmax(1)]
    if len(studies) < 2:
        return Choice(("silence",) * N_LABELS, np.zeros((2, N_LABELS)), cut)
    gain = np.stack([expected_gain(earned - silence) for earned in (threshold, learned)])
    return Choice(choose(gain), gain, cut)
