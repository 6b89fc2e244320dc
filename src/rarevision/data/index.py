"""The index: all frames of a data set in a handful of arrays, 80 MB for Galar's 3.5 million.

Paths are rebuilt from folder, prefix, digits and suffix when needed.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rarevision.data.errors import DataError
from rarevision.data.image import read_image
from rarevision.data.layout import Variant, file_name
from rarevision.data.shared import SharedArrays
from rarevision.files import atomic
from rarevision.labels import LABELS, N_LABELS


@dataclass(frozen=True, eq=False)
class FrameIndex(SharedArrays):
    """All N frames of a data set: studies contiguous, frames ascending in each; a row is a position in these arrays.

    Workers share the arrays, forked or spawned.
    """

    root: Path
    studies: tuple[str, ...]
    offsets: np.ndarray  # int64 [n_studies + 1]: study k has rows offsets[k] .. offsets[k + 1]
    frame: np.ndarray  # int32 [N], the number in the file's name
    labels: np.ndarray | None  # uint8 [N, 17], None where unknown
    systems: tuple[str, ...]  # 'pillcam' | 'olympus' | 'navicam' | 'unknown', per study
    folders: tuple[str, ...]  # below root, per study
    variants: tuple[Variant, ...]  # the ways of writing file names that occur
    variant: np.ndarray  # uint8 [N], position in `variants`

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self, study: str) -> slice:
        """A study's rows."""
        if study not in self.studies:
            raise DataError(f"study {study!r} is not in the index of {self.root}; it holds {', '.join(self.studies)}")
        k = self.studies.index(study)
        return slice(int(self.offsets[k]), int(self.offsets[k + 1]))

    def folder(self, study: str) -> Path:
        return self.root / self.folders[self.studies.index(study)]

    def names(self, study: str) -> list[str]:
        """File names of a study's frames, in its folder, in frame order."""
        rows = self.rows(study)
        pairs = zip(self.variant[rows].tolist(), self.frame[rows].tolist(), strict=True)
        return [file_name(self.variants[v], number) for v, number in pairs]

    def path(self, row: int) -> Path:
        name = file_name(self.variants[self.variant[row]], int(self.frame[row]))
        return self.root / self.folders[int(self.study_of(row))] / name

    def image(self, row: int) -> np.ndarray:
        """uint8 [H, W, 3] RGB of a row's file as it is; FrameError if it cannot be decoded."""
        return read_image(self.path(row))

    def study_of(self, rows: Any) -> np.ndarray:
        """Position in `studies` of each row."""
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def select(self, studies: Sequence[str]) -> "FrameIndex":
        """The same index for some studies only, in the order given."""
        slices = [self.rows(s) for s in studies]
        rows = np.concatenate([np.arange(s.start, s.stop) for s in slices] or [np.empty(0, np.int64)])
        codes = [self.studies.index(s) for s in studies]
        return replace(
            self,
            studies=tuple(studies),
            offsets=np.cumsum([0, *(s.stop - s.start for s in slices)]).astype(np.int64),
            frame=self.frame[rows],
            labels=None if self.labels is None else self.labels[rows],
            systems=tuple(self.systems[k] for k in codes),
            folders=tuple(self.folders[k] for k in codes),
            variant=self.variant[rows],
        )

    def save(self, path: str | Path, notes: dict[str, Any] | None = None) -> None:
        """Parquet with the columns study, frame, variant and the 17 labels; everything small in its metadata."""
        lengths = np.diff(self.offsets)
        codes = np.repeat(np.arange(len(lengths), dtype=np.int16), lengths)
        study = pa.DictionaryArray.from_arrays(codes, pa.array(self.studies, pa.string()))
        columns = {"study": study, "frame": self.frame, "variant": self.variant}
        if self.labels is not None:
            columns |= {name: self.labels[:, i] for i, name in enumerate(LABELS)}
        small = {k: getattr(self, k) for k in ("studies", "systems", "folders", "variants")}
        small |= {"root": str(self.root), "offsets": self.offsets.tolist(), "notes": notes or {}}
        table = pa.table(columns).replace_schema_metadata({"rarevision": json.dumps(small)})
        with atomic(path) as temporary:
            pq.write_table(table, temporary, compression="zstd", row_group_size=1 << 18)

    @classmethod
    def load(cls, path: str | Path) -> "FrameIndex":
        """A saved index; DataError where the file is something else."""
        with _opened(path) as (parquet, small):
            n, columns = parquet.metadata.num_rows, parquet.schema_arrow.names[1:]
            arrays = {"frame": np.empty(n, np.int32), "variant": np.empty(n, np.uint8)}
            labels = np.empty((n, N_LABELS), np.uint8) if LABELS[0] in columns else None
            arrays |= {} if labels is None else {name: labels[:, i] for i, name in enumerate(LABELS)}
            start = 0
            for batch in parquet.iter_batches(1 << 16, columns=columns):  # in pieces: no second copy of it all
                for name in columns:
                    arrays[name][start : start + len(batch)] = batch[name].to_numpy()
                start += len(batch)
        return cls(
            root=Path(small["root"]),
            studies=tuple(small["studies"]),
            offsets=np.asarray(small["offsets"], np.int64),
            frame=arrays["frame"],
            labels=labels,
            systems=tuple(small["systems"]),
            folders=tuple(small["folders"]),
            variants=tuple((prefix, digits, suffix) for prefix, digits, suffix in small["variants"]),
            variant=arrays["variant"],
        )


def load_notes(path: str | Path) -> dict[str, Any]:
    """The notes that were saved with an index."""
    with _opened(path) as (_, small):
        return small["notes"]


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """A saved index's file and what its metadata hold."""
    try:
        with pq.ParquetFile(path) as parquet:
            yield parquet, json.loads(parquet.schema_arrow.metadata[b"rarevision"])
    except FileNotFoundError:
        raise
    except (OSError, KeyError, TypeError, pa.ArrowException, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not a frame index ({error}); delete it and run stage 01 again") from None
