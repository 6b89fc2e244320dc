import numpy as np
import pytest

from rarevision import scores
from rarevision.errors import UserError


def save(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


FRAME = np.array([5, 10, 15], np.int32)
PROBS = np.full((3, 17), 0.5, np.float32)


def test_round_trip(tmp_path):
    scores.write_probs(tmp_path / "7.npz", FRAME, PROBS, np.ones((3, 4)))
    frame, probs = scores.read_probs(tmp_path / "7.npz")
    assert frame.tolist() == [5, 10, 15] and probs.dtype == np.float32 and (probs == 0.5).all()
    with np.load(tmp_path / "7.npz") as archive:
        assert archive["embeddings"].dtype == np.float16 and archive["embeddings"].shape == (3, 4)
    scores.write_probs(tmp_path / "8.npz", FRAME, PROBS)
    with np.load(tmp_path / "8.npz") as archive:
        assert sorted(archive.files) == ["frame", "probs"]


def test_half_precision_scores_of_another_model_are_read(tmp_path):
    path = save(tmp_path / "7.npz", frame=FRAME.astype(np.int64), probs=PROBS.astype(np.float16))
    assert scores.read_probs(path)[1].dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"frame": FRAME}, "no array 'probs'; it holds frame"),
        ({"probs": PROBS}, "no array 'frame'"),
        ({"frame": FRAME, "probs": PROBS[:2]}, r"must be \[3, 17\] as 'frame' is, not \[2, 17\]"),
        ({"frame": FRAME, "probs": PROBS[:, :5]}, r"not \[3, 5\]"),
        ({"frame": FRAME.astype(float), "probs": PROBS}, "'frame' must be integers"),
        ({"frame": FRAME[::-1].copy(), "probs": PROBS}, "'frame' must ascend; row 1 holds 10 after 15"),
        ({"frame": FRAME * 0, "probs": PROBS}, "must ascend"),
        ({"frame": FRAME[:0], "probs": PROBS[:0]}, "no frames"),
        ({"frame": FRAME, "probs": PROBS + 3}, r"probs\[0, 0\] \(frame 5\) is 3.5, outside \[0, 1\]; write sigmoid"),
        ({"frame": FRAME, "probs": PROBS * np.nan}, "is nan, outside"),
        ({"frame": FRAME, "probs": np.ones((3, 17), int)}, "must be floating point"),
        ({"frame": FRAME, "probs": np.array([[None] * 17] * 3)}, "not a readable .npz"),  # would need unpickling
    ],
)
def test_a_bad_score_file_is_refused_with_the_place(tmp_path, arrays, message):
    path = save(tmp_path / "7.npz", **arrays)
    with pytest.raises(UserError, match=message) as caught:
        scores.read_probs(path)
    assert "7.npz" in str(caught.value)


def test_timelines_of_studies_without_scores_are_read_too(tmp_path):
    for study, value in (("10", 0), ("2", 1)):
        scores.write_labels(tmp_path / f"{study}.npz", FRAME, np.full((3, 17), value, np.uint8))
    found = scores.read_timelines(tmp_path)
    assert list(found) == ["2", "10"] and found["2"].all() and not found["10"].any()
    assert scores.read_timelines(tmp_path / "none") == {}


def test_not_an_archive(tmp_path):
    (tmp_path / "7.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(UserError, match="not a readable"):
        scores.read_probs(tmp_path / "7.npz")
    with open(tmp_path / "8.npz", "wb") as f:
        np.save(f, PROBS)
    with pytest.raises(UserError, match="a single array"):
        scores.read_probs(tmp_path / "8.npz")
    whole = save(tmp_path / "9.npz", frame=FRAME, probs=np.random.default_rng(0).random((3, 17), np.float32))
    torn = bytearray(whole.read_bytes())
    torn[80:120] = bytes(40)
    whole.write_bytes(torn)
    with pytest.raises(UserError, match=r"9\.npz"):
        scores.read_probs(whole)


def test_labels_are_zero_or_one(tmp_path):
    path = save(tmp_path / "7.npz", frame=FRAME, labels=np.full((3, 17), 2, np.uint8))
    with pytest.raises(UserError, match=r"labels\[0, 0\] \(frame 5\) is 2, not 0 or 1"):
        scores.read_labels(path)


def test_studies_come_in_natural_order_and_must_match_their_truth(tmp_path):
    for study in ("10", "9", "ukdd_navi_00051"):
        scores.write_probs(tmp_path / "probs" / f"{study}.npz", FRAME, PROBS)
        scores.write_labels(tmp_path / "labels" / f"{study}.npz", FRAME, np.zeros((3, 17)))
    found = scores.read_studies(tmp_path / "probs", tmp_path / "labels")
    assert [s.study for s in found] == ["9", "10", "ukdd_navi_00051"]
    scores.write_labels(tmp_path / "labels/9.npz", FRAME + 1, np.zeros((3, 17)))
    with pytest.raises(UserError, match="hold different frames"):
        scores.read_studies(tmp_path / "probs", tmp_path / "labels")
    (tmp_path / "labels/9.npz").unlink()
    with pytest.raises(UserError, match=r"9\.npz: missing"):
        scores.read_studies(tmp_path / "probs", tmp_path / "labels")
    scores.write_probs(tmp_path / "probs/11.npz", FRAME, PROBS)
    (tmp_path / "probs/manifest.json").write_text('{"studies": {"11": {}}}')
    assert [s.study for s in scores.read_studies(tmp_path / "probs")] == ["11"], "the others are an earlier test set's"
    (tmp_path / "probs/11.npz").unlink()
    with pytest.raises(UserError, match="named in manifest"):
        scores.read_studies(tmp_path / "probs")
    with pytest.raises(UserError, match="run stage 03 first"):
        scores.read_studies(tmp_path / "nothing")
