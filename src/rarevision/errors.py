"""Errors that whoever runs the program can mend: a file, a setting, a folder."""

import difflib
from collections.abc import Sequence
from pathlib import Path


class UserError(ValueError):
    """Something outside the program is wrong, and the message says how to put it right.

    The text reads `<file>, <place>: <cause>; <remedy>`, each part only where it is known. Every package raises this
    class or a subclass of it. `run_all.sh`, the command line and the notebooks show the text alone: a traceback through
    our code would tell the reader nothing about the file that has to be mended.

    cause   what is wrong, in words
    file    the file or folder that is wrong
    place   where in it: a row, a key, a frame, a study
    remedy  what to do about it
    """

    def __init__(self, cause: str, *, file: str | Path = "", place: str = "", remedy: str = ""):
        where = ", ".join(str(part) for part in (file, place) if str(part))
        text = f"{where}: {cause}" if where else cause
        super().__init__(f"{text}; {remedy}" if remedy else text)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback; see `IPython.core.interactiveshell.showtraceback`."""
        return [f"{type(self).__name__}: {self}"]


def nearest(name: str, known: Sequence[str]) -> str:
    """The remedy for a name that is not one of `known`: the one that was probably meant, else all of them."""
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= 60 else []  # slow for long names
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
