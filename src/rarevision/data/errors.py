"""The errors of this package. Whoever runs the program can mend what they name."""

from pathlib import Path

from rarevision.errors import UserError


class DataError(UserError):
    """A data set, an index, a split or a cache that cannot be used."""


class FrameError(DataError):
    """One frame that cannot be decoded: the file is `path`, what is wrong with it `reason`.

    It has a class of its own because a study may hold a few such frames (`data.max_bad_share`): they are counted and
    left out, where any other `DataError` ends the run.
    """

    def __init__(self, path: str | Path, reason: str):
        super().__init__(reason, file=path)
        self.path, self.reason = Path(path), reason

    def __reduce__(self):
        return FrameError, (self.path, self.reason)  # worker processes send it to the main process
