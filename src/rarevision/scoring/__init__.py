"""The challenge's metric, what it is made of, and the submission file.

In come events (`rarevision.events`) or frame scores (`rarevision.scores`); out come reports and tables. Begin with
`score_events`, which compares two sets of events and returns a `Report`.

score_events            Report of a prediction against the truth
Report                  average precision of every study and label, and every mean and count of them
GROUPS                  the columns of all labels, of anatomy, and of findings
score_sources           table of where a score comes from: silence, anatomy, findings
shown_tables            a report as text or JSON
event_ap                average precision of one label's events in one study
event_aps               the metric alone, for many studies
bootstrap_intervals     intervals of a report's measures over studies drawn with replacement
compare_reports         paired difference of two predictions, with its interval
frame_ap                average precision per label over frames
frame_table             frame metrics per label, with intervals over studies
write_submission        write the challenge's JSON, checked before it takes its place
check_submission        every fault of a submission, given the test set's frames
check_submission_file   the same for a file
describe_submission     one line on a valid submission
"""

from rarevision.scoring.frame_metrics import frame_ap, frame_table
from rarevision.scoring.intervals import bootstrap_intervals, compare_reports
from rarevision.scoring.matching import event_ap
from rarevision.scoring.report import GROUPS, Report, event_aps, score_events, score_sources, shown_tables
from rarevision.scoring.submission import check_submission, check_submission_file, describe_submission, write_submission

__all__ = [
    "GROUPS",
    "Report",
    "bootstrap_intervals",
    "check_submission",
    "check_submission_file",
    "compare_reports",
    "describe_submission",
    "event_ap",
    "event_aps",
    "frame_ap",
    "frame_table",
    "score_events",
    "score_sources",
    "shown_tables",
    "write_submission",
]
