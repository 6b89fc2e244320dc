"""The frame index: Galar's layouts joined on `frame`, and one clear error per kind of fault."""

import os
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rarevision.data import DataError, FrameIndex, read_galar, read_test
from rarevision.data.tables import read_label_csv
from rarevision.files import fingerprint
from rarevision.labels import COLUMN, LABELS
from rarevision.run.command import main

OTHERS = ["ampulla of vater", "foreign body", "IBD", "cancer", "esophagitis", "varices", "celiac", "section"]
VIEWS = ["bubbles", "dirt", "no view", "reduced view", "good view"]


def table(frame, index=None, olympus=False, **columns) -> pd.DataFrame:
    """A label table in Galar's layout: 27 columns, or 32 with the Olympus ones; `columns` are labels (`_` = space)."""
    index = np.arange(len(frame)) if index is None else index
    data = {name: np.zeros(len(frame), int) for name in (VIEWS if olympus else [])} | {"index": index}
    data |= {name: np.zeros(len(frame), int) for name in (*LABELS, *OTHERS[:-1])} | {"section": "colon"}
    data |= {name.replace("_", " "): values for name, values in columns.items()} | {"frame": frame}
    return pd.DataFrame(data)


def frames(folder, numbers, name="frame_{:06d}.PNG", size=8):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        Image.new("RGB", (size, size), (number % 256, 80, 60)).save(folder / name.format(number))


@pytest.fixture
def galar(tmp_path):
    return write_galar(tmp_path / "galar")


def write_galar(root):
    """Study 7 (PillCam, frame = 5 * index) and study 40 (Olympus), with the newer of two labels folders right."""
    frames(root / "Galar_Frames_001-010" / "7", range(0, 50, 5), size=512)
    frames(root / "40", range(3, 9), size=336)
    new, old = root / "20251215_Labels_Updated", root / "Labels"
    new.mkdir()
    old.mkdir()
    pillcam = table(np.arange(0, 50, 5), polyp=[0, 0, 1] + [0] * 7, small_intestine=[1] * 10)
    pillcam.rename(columns={"small intestine": "Small_Intestine", "polyp": " Polyp "}).to_csv(
        new / "7.csv", index=False
    )
    table(np.arange(10), olympus=True, stomach=[1] * 10).to_csv(new / "40.csv", index=False)
    (old / "7.csv").write_text("frame\n1\n")  # never read
    (root / "metadata.csv").write_text("File Name,Capsule System,Gender,Age\n7, PillCam SB3 ,f,50\n40 ,Olympus ,m,60\n")
    return root


def labels_of(galar, study="7"):
    return galar / "20251215_Labels_Updated" / f"{study}.csv"


def rewrite(path, change):
    data = pd.read_csv(path)
    change(data).to_csv(path, index=False)


def test_layouts_are_joined_on_frame(galar):
    index, report = read_galar(galar, progress=False)
    assert index.studies == ("7", "40") and index.systems == ("pillcam", "olympus")
    assert index.frame[index.rows("7")].tolist() == list(range(0, 50, 5))
    assert index.frame[index.rows("40")].tolist() == [3, 4, 5, 6, 7, 8]
    # polyp is in the row of frame 10 (index 2): a join on `index` would miss it
    assert np.flatnonzero(index.labels[:, COLUMN["polyp"]]).tolist() == [2] and index.frame[2] == 10
    assert index.labels[index.rows("7"), COLUMN["small intestine"]].all()
    assert index.labels[index.rows("40"), COLUMN["stomach"]].all()
    assert report.loc["7", ["on_disk", "labelled", "joined", "ratio", "width"]].tolist() == [10, 10, 10, 5, 512]
    assert report.loc["40", ["on_disk", "labelled", "joined", "only_labelled", "ratio"]].tolist() == [6, 10, 6, 4, 1]
    assert all(index.path(row).is_file() for row in range(len(index)))
    assert index.study_of(np.array([0, 9, 10, 15])).tolist() == [0, 0, 1, 1]


def test_system_is_inferred_without_metadata(galar):
    (galar / "metadata.csv").unlink()
    assert read_galar(galar, progress=False)[0].systems == ("pillcam", "olympus")


def test_mixed_suffixes_within_a_study_keep_their_paths(galar):
    folder = galar / "40"
    (folder / "frame_000004.PNG").rename(folder / "frame_000004.png")
    (folder / "frame_000005.PNG").rename(folder / "Frame_5.png")
    index, _ = read_galar(galar, progress=False)
    assert [index.path(r).name for r in (11, 12)] == ["frame_000004.png", "Frame_5.png"]
    assert all(index.path(row).is_file() for row in range(len(index)))


def test_partial_copies_are_reported_not_refused(galar):
    frames(galar / "50", [1, 2])
    table([1, 2]).to_csv(labels_of(galar, "8"), index=False)
    index, report = read_galar(galar, progress=False)
    assert index.studies == ("7", "40")
    assert report.loc["50", "note"] == "frames without labels" and report.loc["50", "only_on_disk"] == 2
    assert report.loc["8", "note"] == "labels without frames" and report.loc["8", "only_labelled"] == 2


def test_missing_label_column_is_named_and_zero_only_where_allowed(galar):
    rewrite(labels_of(galar), lambda t: t.drop(columns="ulcer"))
    with pytest.raises(DataError, match=r"7\.csv: no column for 'ulcer'.*missing_labels"):
        read_galar(galar, progress=False)
    assert not read_galar(galar, missing="zero", progress=False)[0].labels[:, COLUMN["ulcer"]].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="frame"), r"no column 'frame'"),
        (lambda t: pd.concat([t, t.iloc[[4]]]), r"frame 20 occurs twice \(row 11\)"),
        (lambda t: t.assign(blood=[0] * 9 + [2]), r"row 10 \(frame 45\), column 'blood': 2 is not 0 or 1"),
        (lambda t: t.assign(blood=[0] * 9 + ["x"]), r"row 10 .*'x' is not 0 or 1 \(1 such"),
        (lambda t: t.assign(blood=[0] * 9 + [np.nan]), r"row 10 .*an empty cell is not 0 or 1"),
        (lambda t: t.assign(blood=[0] * 9 + [0.5]), r"row 10 .*: 0\.5 is not 0 or 1"),
        (lambda t: t.assign(frame=[*range(9), "a"]), r"row 10, column 'frame': 'a' is not a frame number"),
        (lambda t: t.assign(frame=[*range(9), -1]), r"row 10, column 'frame'"),
        (lambda t: t.assign(frame=[*range(9), 2**31]), r"row 10, column 'frame'"),
        (lambda t: t.assign(Blood=0), r"columns 'blood' and 'Blood' are the same label"),
        (lambda t: t.rename(columns={"cancer": "blood.1"}), r"column 'blood' occurs twice"),
        (lambda t: t.iloc[:0], r"a header and no rows"),
        (lambda t: t.assign(frame=t.frame + 1), r"nothing joined; files number 0\.\.45, the `frame` column 1\.\.46"),
    ],
)
def test_faulty_tables_name_file_and_row(galar, change, message):
    rewrite(labels_of(galar), change)
    with pytest.raises(DataError, match=r"7\.csv.*" + message):
        read_galar(galar, progress=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "empty"),
        (b"index|frame\n0|1\n", "unknown delimiter"),
        (b"index,frame\n0,1\n0,1,2,3\n", "not a readable CSV"),
        (b"index,frame\n\xff\xfe,1\n", "not a readable CSV"),
    ],
)
def test_unreadable_tables(galar, text, message):
    labels_of(galar).write_bytes(text)
    with pytest.raises(DataError, match=r"7\.csv: .*" + message):
        read_galar(galar, progress=False)


def test_files_numbered_by_index_are_noted(galar):
    """The published run's mistake: PillCam files named by `index` join on every fifth only."""
    folder = galar / "Galar_Frames_001-010" / "7"
    for k in range(10):
        (folder / f"frame_{5 * k:06d}.PNG").rename(folder / f"frame_{k:06d}.tmp")
    for k in range(10):
        (folder / f"frame_{k:06d}.tmp").rename(folder / f"frame_{k:06d}.PNG")
    _, report = read_galar(galar, progress=False)
    assert report.loc["7", "joined"] == 2 and "follow `index`" in report.loc["7", "note"]


def two_parts(galar):
    frames(galar / "Galar_Frames_B" / "7", [100])


def twice(galar):
    frames(galar / "40", [4], "frame_000004.png")


def unnumbered(galar):
    frames(galar / "40", [4], "thumbnail.png")


def all_unnumbered(galar):
    frames(galar / "9", [4], "picture.png")
    table([4]).to_csv(labels_of(galar, "9"), index=False)


def out_of_root(galar):
    frames(galar.parent / "elsewhere", [4])
    (galar / "40" / "frame_000020.PNG").symlink_to(galar.parent / "elsewhere" / "frame_000004.PNG")


def table_out_of_root(galar):
    path = labels_of(galar)
    path.rename(galar.parent / "7.csv")
    path.symlink_to(galar.parent / "7.csv")


def folder_out_of_root(galar):
    frames(galar.parent / "elsewhere", [4])
    (galar / "41").symlink_to(galar.parent / "elsewhere")


def same_study_under_another_name(galar):
    (galar / "41").symlink_to(galar / "40")


def huge_number(galar):
    frames(galar / "40", [99999999999])


def pipe(galar):
    os.mkfifo(galar / "40" / "frame_000030.PNG")


def no_labels(galar):
    for folder in ("20251215_Labels_Updated", "Labels"):
        (galar / folder).rename(galar / folder.replace("Labels", "Tables"))


def undated_labels(galar):
    (galar / "20251215_Labels_Updated").rename(galar / "Labels_new")


def other_names(galar):
    (galar / "40").rename(galar / "study40")
    (galar / "Galar_Frames_001-010" / "7").rename(galar / "07")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            two_parts,
            r"study '7' lies in two parts, .*Galar_Frames_001-010/7.*Galar_Frames_B/7|Galar_Frames_B/7.*001-010",
        ),
        (twice, r"40: frame_000004\.(PNG|png) and frame_000004\.(PNG|png) have the same frame number"),
        (unnumbered, r"thumbnail\.png: not named frame_<number>"),
        (all_unnumbered, r"9/picture\.png: no frame number"),
        (out_of_root, r"frame_000020\.PNG: a link out of"),
        (table_out_of_root, r"20251215_Labels_Updated/7\.csv: a link out of"),
        (folder_out_of_root, r"41: a link out of"),
        (same_study_under_another_name, r"4[01]: a link to .*read already"),
        (huge_number, r"frame_99999999999\.PNG: the frame number"),
        (pipe, r"frame_000030\.PNG: not a regular file"),
        (no_labels, r'no folder of CSVs whose name contains "Labels"'),
        (undated_labels, r"which labels are newer"),
        (other_names, r"no study has both frames and labels; frames of 07, study40.* of 7, 40"),
    ],
)
def test_faulty_folders_name_the_place(galar, fault, message):
    fault(galar)
    with pytest.raises(DataError, match=message):
        read_galar(galar, progress=False)


@pytest.fixture
def warm(galar):
    """What Python imports on first use is imported while its own files may be read."""
    main(["verify", str(galar), "--full"])


def test_what_may_not_be_read(warm, forbidding, capsys):
    """A folder, a table, a frame without permission: each named, by reading and by `verify`."""
    root = write_galar(forbidding / "set")
    frame, table_, folder = root / "40/frame_000004.PNG", labels_of(root), root / "40"
    for path, named in ((frame, "04.PNG: no permission to read it"), (table_, r"7.csv: no permission to read it"),
                        (folder, "40: no permission to list it; run `chmod u+rx`")):  # fmt: skip
        path.chmod(0)
        code, out = verify(root, capsys)
        assert code == 1 and named in out
        if path != frame:
            with pytest.raises(DataError, match=re.escape(named)):
                read_galar(root, progress=False)
        path.chmod(0o755)


def test_missing_root_and_named_labels_folder(galar):
    with pytest.raises(DataError, match="no such folder"):
        read_galar(galar / "nowhere", progress=False)
    with pytest.raises(DataError, match=r"no such labels folder.*20251215_Labels_Updated, Labels"):
        read_galar(galar, labels="Label", progress=False)
    with pytest.raises(DataError, match=r"Labels/7\.csv"):
        read_galar(galar, labels="Labels", progress=False)


def test_hidden_files_are_not_frames(galar):
    (galar / "40" / "._frame_000004.png").write_bytes(b"resource fork")
    (galar / "40" / ".DS_Store").write_bytes(b"")
    assert read_galar(galar, progress=False)[1].loc["40", "on_disk"] == 6


def test_kept_index_is_reused_until_a_folder_or_table_changes(galar, tmp_path, monkeypatch):
    kept = tmp_path / "index.parquet"
    index, report = read_galar(galar, cache=kept, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr("rarevision.data.galar.read_label_csv", lambda *_: pytest.fail("tables were read again"))
        patch.setattr("rarevision.data.galar.scan", lambda *_: pytest.fail("the folders were walked again"))
        again, report_again = read_galar(galar, cache=kept, progress=False)
    assert np.array_equal(index.labels, again.labels) and again.path(3) == index.path(3)
    pd.testing.assert_frame_equal(report, report_again)
    frames(galar / "40", [9])
    assert len(read_galar(galar, cache=kept, progress=False)[0]) == len(index) + 1
    rewrite(labels_of(galar), lambda t: t.assign(blood=1))
    assert read_galar(galar, cache=kept, progress=False)[0].labels[:10, COLUMN["blood"]].all()
    (galar / "40" / "frame_000009.PNG").unlink()
    assert len(read_galar(galar, cache=kept, progress=False)[0]) == len(index)
    with pytest.raises(DataError, match="no such labels folder"):  # other settings are not answered from what is kept
        read_galar(galar, labels="other", cache=kept, progress=False)


def test_save_load_select_and_pickle(galar, tmp_path):
    index, _ = read_galar(galar, progress=False)
    index.save(tmp_path / "index.parquet")
    for copy in (FrameIndex.load(tmp_path / "index.parquet"), pickle.loads(pickle.dumps(index))):
        assert copy.studies == index.studies and copy.systems == index.systems
        for name in ("offsets", "frame", "labels", "variant"):
            assert np.array_equal(getattr(copy, name), getattr(index, name))
        assert [copy.path(r) for r in range(len(copy))] == [index.path(r) for r in range(len(index))]
    part = index.select(["40"])
    assert part.studies == ("40",) and len(part) == 6 and part.path(0) == index.path(10)
    with pytest.raises(DataError, match="study '99' is not in the index"):
        index.select(["99"])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"bad\.parquet: not a frame index"):
        FrameIndex.load(tmp_path / "bad.parquet")


def test_fingerprint_follows_names_sizes_and_times(galar):
    seen = {fingerprint(galar)}
    assert fingerprint(galar) in seen
    path = galar / "40" / "frame_000003.PNG"
    for change in (
        lambda: os.utime(path, ns=(1, 1)),
        lambda: path.write_bytes(b"x"),
        path.unlink,
        lambda: frames(galar / "40", [77]),
        lambda: labels_of(galar).write_text("frame\n"),
    ):
        change()
        assert fingerprint(galar) not in seen
        seen.add(fingerprint(galar))


def test_challenge_layout(tmp_path):
    frames(tmp_path / "test" / "a" / "ukdd_navi_00051", range(49, 55), "frame_{:07d}.png", size=480)
    rows = "".join(f"frame_{k:07d}.png{';' * 21}\n" for k in range(49, 56))
    (tmp_path / "test" / "ukdd_navi_00051.csv").write_text("frame_file;" + ";".join([*LABELS, *"abcd"]) + "\n" + rows)
    index, report = read_test(tmp_path / "test", progress=False)
    assert index.labels is None and index.systems == ("navicam",) and index.frame.tolist() == list(range(49, 55))
    line = report.loc["ukdd_navi_00051"]
    assert line[["on_disk", "labelled", "joined", "only_labelled"]].tolist() == [6, 7, 6, 1] and line.note
    assert pickle.loads(pickle.dumps(index)).labels is None
    (tmp_path / "test" / "ukdd_navi_00051.csv").write_text("frame_file;x\nimg1.png;\n")
    with pytest.raises(DataError, match=r"row 1, column 'frame_file': 'img1\.png'"):
        read_test(tmp_path / "test", progress=False)


def test_test_root_without_frames(tmp_path):
    with pytest.raises(DataError, match="no folder with frames"):
        read_test(tmp_path, progress=False)
    frames(tmp_path / "exam", [1], "shot{}.png")
    with pytest.raises(DataError, match=r"exam/shot1\.png has no frame number"):
        read_test(tmp_path, progress=False)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2**17 - 1)), min_size=1, unique_by=lambda x: x[0]))
def test_label_csv_round_trip(tmp_path_factory, rows):
    """Whatever order the rows come in: ascending frames, each with its own labels."""
    path = tmp_path_factory.mktemp("csv") / "1.csv"
    frame = np.array([f for f, _ in rows])
    bits = np.array([[b >> i & 1 for i in range(17)] for _, b in rows])
    data = pd.DataFrame(dict(zip(LABELS, bits.T, strict=True)) | {"frame": frame})
    data.to_csv(path, index=False)
    got, labels, counter = read_label_csv(path)
    order = np.argsort(frame)
    assert np.array_equal(got, frame[order]) and np.array_equal(labels, bits[order]) and counter is None


def verify(root, capsys, *options) -> tuple[int, str]:
    code = main(["verify", str(root), "--workers", "1", *options])
    return code, capsys.readouterr().out


def test_verify_passes_a_whole_data_set(galar, capsys):
    for options in ((), ("--full",)):
        code, out = verify(galar, capsys, *options)
        assert code == 0 and "no fault in 16 frames of 2 studies" in out and "olympus" in out


def test_verify_lists_all_faults_at_once(galar, capsys):
    two_parts(galar)
    twice(galar)
    out_of_root(galar)
    rewrite(labels_of(galar), lambda t: t.drop(columns="ulcer"))
    rewrite(labels_of(galar, "40"), lambda t: t.assign(blood=7))
    (galar / "40" / "frame_000003.PNG").write_bytes(b"")
    path = galar / "40" / "frame_000005.PNG"
    path.write_bytes(path.read_bytes()[:-20])
    Image.new("L", (8, 8)).save(galar / "40" / "frame_000006.PNG")
    code, out = verify(galar, capsys)
    assert code == 1 and out.count("FAULT") == 8 and "8 line(s) of faults, 3 bad frame(s)" in out
    tables = ["two parts", "same frame number", "a link out of", "no column for 'ulcer'", "7 is not 0 or 1"]
    for part in [*tables, "03.PNG: zero bytes", "05.PNG: truncated", "06.PNG: wrong mode: grey"]:
        assert part in out, part


def test_verify_full_decodes_what_headers_cannot_show(galar, capsys):
    path = galar / "40" / "frame_000005.PNG"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert verify(galar, capsys)[0] == 0
    code, out = verify(galar, capsys, "--full")
    assert code == 1 and "frame_000005.PNG: damaged (checksum" in out


def test_verify_a_test_set_and_a_missing_folder(tmp_path, capsys):
    frames(tmp_path / "set" / "exam", range(30), "frame_{:07d}.png")
    assert verify(tmp_path / "set", capsys)[0] == 0
    for i in range(25):
        (tmp_path / "set" / "exam" / f"frame_{i:07d}.png").write_bytes(b"")
    code, out = verify(tmp_path / "set", capsys)
    assert (
        code == 1
        and out.count("FAULT") == 21
        and "25 bad frame(s) in 30" in out
        and "exam: 5 more bad frames, 25 in all" in out
    )
    code, out = verify(tmp_path / "nowhere", capsys)
    assert code == 1 and "nowhere: no such folder" in out


def test_command_line_needs_a_command(capsys):
    assert main([]) == 2
    assert "verify" in "".join(capsys.readouterr())
