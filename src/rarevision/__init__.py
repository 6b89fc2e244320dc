"""Events of 17 labels in video capsule endoscopy: from frames to a validated submission.

The top package holds the words that every other package speaks. Each of its modules may be imported by name:

labels        the 17 labels, their order and groups
events        stretches of frames with labels, and rows of labels as events
event_files   the challenge's JSON file of events, read and checked
scores        files of frame scores and labels, one per study, through which the stages meet
config        the settings of a run, read from a TOML file
files         atomic writing and hashes
stage         manifests: what a stage was made from, and whether it is up to date
errors        `UserError`, the base of everything that the user can mend

The names needed most often can be imported from here:

LABELS         names of the 17 labels, in the order of every column
ANATOMY        the first eight of them: five regions and three landmarks
FINDINGS       the other nine
Event          one stretch of frames, `start` and `end` included, with its labels
read_events    events of a challenge file, checked
StudyScores    frame numbers, scores and (where known) labels of one study
read_studies   all studies of a folder of score files
Config         the settings of a run
load_config    settings from a TOML file
UserError      something the user can mend, in one line
"""

from rarevision.config import Config, load_config
from rarevision.errors import UserError
from rarevision.event_files import read_events
from rarevision.events import Event
from rarevision.labels import ANATOMY, FINDINGS, LABELS
from rarevision.scores import StudyScores, read_studies

__all__ = [
    "ANATOMY",
    "FINDINGS",
    "LABELS",
    "Config",
    "Event",
    "StudyScores",
    "UserError",
    "load_config",
    "read_events",
    "read_studies",
]

__version__ = "0.1.0"
