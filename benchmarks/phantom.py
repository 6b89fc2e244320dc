"""Frames per second that one core renders and writes as PNG, per capsule system.

    OMP_NUM_THREADS=1 python benchmarks/phantom.py

Processor time is what the work costs (walls and lesions of the study included); wall time shows who else is busy.
"""

import tempfile
import time
from pathlib import Path

import phantom
from rarevision import config


def main() -> None:
    train, test = phantom.plan(config.Phantom())
    for study in {s.system: s for s in train + test}.values():
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = time.perf_counter(), time.process_time()
            n = phantom.write_study(Path(folder), study, {})
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            size = sum(p.stat().st_size for p in (Path(folder) / study.folder).iterdir()) / n
        print(
            f"{study.system:8} {study.size} px: {n} frames, {n / cpu:.0f} frames/s of processor time, "
            f"{n / wall:.0f} frames/s of wall time, {size / 1000:.0f} kB a frame"
        )


if __name__ == "__main__":
    main()
