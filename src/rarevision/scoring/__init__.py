"""The challenge's metric, what it is made of, and the submission file.

In come events (`rarevision.events`) or frame scores (`rarevision.scores`); out come reports and tables. Begin with
`score_events`, which compares two sets of events and returns a `Report`.

score_events          Report on a prediction against the truth
Report                score of every study and label, where it comes from, what a reader gets; as tables, JSON and text
event_ap              average precision (AP) of one label's events in one study
bootstrap_intervals   intervals of a report's measures over studies drawn with replacement
compare_reports       paired difference of two predictions, with its interval
frame_ap              AP per label over frames
frame_table           frame metrics per label, with intervals over studies
write_submission      write the challenge's JSON, checked before it takes its place
check_submission      every fault of a submission file, given the test set's frames
describe_submission   one line on a valid submission
"""

from rarevision.scoring.bootstrap import bootstrap_intervals, compare_reports
from rarevision.scoring.frame_metrics import frame_ap, frame_table
from rarevision.scoring.matching import event_ap
from rarevision.scoring.report import Report, score_events
from rarevision.scoring.submission import check_submission, describe_submission, write_submission

__all__ = [
    "Report",
    "bootstrap_intervals",
    "check_submission",
    "compare_reports",
    "describe_submission",
    "event_ap",
    "frame_ap",
    "frame_table",
    "score_events",
    "write_submission",
]
