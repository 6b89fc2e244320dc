"""The check of a data set before hours of work: every fault of folders, tables and frames, in one list."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm.auto import tqdm

from rarevision.data.errors import DataError, FrameError
from rarevision.data.galar import label_tables, read_galar, read_test
from rarevision.data.image import check, read_image
from rarevision.data.layout import Scan, labels_folder, scan
from rarevision.data.tables import read_label_csv

SHOWN = 20  # bad frames of a study that are named


def verify_data(root: Path, full: bool = False, labels: str = "", workers: int = -1) -> int:
    """Check a training data set (there is a folder of labels) or a test set; prints faults, returns 1 if there are any.

    Every frame's header and end are read, with `full` every frame is decoded.
    """
    found, faults, frames, bad = Scan(), [], 0, 0
    try:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder")
        found = scan(root)
        faults += found.faults
        training = bool(labels) or any("labels" in t.parent.name.lower() for t in found.tables)
        if training:
            faults += _table_faults(labels_folder(root, labels, found))
        if not faults:
            _, report = read_galar(root, labels) if training else read_test(root)
            notes = report.note[report.note != ""]
            faults += [f"study {study}: {note}" for study, note in notes.items() if note.startswith("file numbers")]
            print(report.drop(columns=["folder", "note"]).to_string())
            for study, note in notes.items():
                print(f"note: study {study}: {note}")
    except DataError as error:
        faults.append(str(error))
    for folder in tqdm(found.folders.values(), "frames", unit="study"):
        paths = [root / folder.path / name for name in found.names(folder)]
        frames += len(paths)
        wrong = _frame_faults(paths, full, workers)
        bad += len(wrong)
        faults += wrong[:SHOWN]
        if len(wrong) > SHOWN:
            faults.append(f"{root / folder.path}: {len(wrong) - SHOWN} more bad frames, {len(wrong)} in all")
    for fault in faults:
        print(f"FAULT {fault}")
    depth = "decoded" if full else "headers and ends read; --full decodes every frame"
    count = f"{len(faults)} line(s) of faults, {bad:,} bad frame(s)" if faults else "no fault"
    print(f"{root}: {count} in {frames:,} frames of {len(found.folders)} studies ({depth})")
    return 1 if faults else 0


def _table_faults(folder: Path) -> list[str]:
    faults = []
    for path in label_tables(folder).values():
        try:
            read_label_csv(path)
        except DataError as error:
            faults.append(str(error))
    return faults


def _frame_faults(paths: list[Path], full: bool, workers: int) -> list[str]:
    def fault(path: Path) -> str:
        try:
            read_image(path) if full else check(path)
        except FrameError as error:
            return str(error)
        return ""

    threads = len(os.sched_getaffinity(0)) if workers == -1 else max(workers, 1)
    with ThreadPoolExecutor(threads) as pool:
        return [found for found in pool.map(fault, paths) if found]
