"""The challenge's metric, what it is made of, and the submission file."""

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
