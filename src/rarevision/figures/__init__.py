"""Every picture, drawn with matplotlib from tables and arrays that other packages made.

    from rarevision import figures
    figures.style()
    figures.charts.bars(frames_per_label, "The regions are on most frames", "frames")

In come arrays, tables, events or reports, and a title that says what to see; out comes the matplotlib `Axes` or
`Figure`, so that a notebook may add to it. Colours are told apart in grey and by colour-blind readers. A stage's hash
leaves this package out (`rarevision.stage.code_hash`): a better picture never costs a training.

style       the look of all figures, and the order of their colours; call it once per notebook
charts      of any numbers: bars per label, a table as shaded cells, a grid of images
data        of the frames: labels that come together, durations of events, frames of each label and capsule system
model       of attention: drift of the features from the pretrained ones, and attention maps
training    of learning: curves over epochs, average precision per label with its interval
scores      of decisions: precision against recall, thresholds, where the score comes from, reliability
timelines   of one study: scores, true and predicted events along its frames, and the frames that events show
"""

from rarevision.figures import charts, data, model, scores, timelines, training
from rarevision.figures.palette import style

__all__ = ["charts", "data", "model", "scores", "style", "timelines", "training"]
