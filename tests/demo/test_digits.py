import numpy as np

from lbbsp.demo import digits


def test_images_are_moved_by_one_pixel_and_enlarged_with_their_labels():
    images = np.zeros((2, 8, 8))
    images[0, 3, 4] = 1.0
    large, labels = digits.prepared(images, np.array([5, 6]), enlarged=2)
    assert large.shape == (10, 1, 16, 16)
    assert labels.tolist() == [5, 6] * 5
    marked = [tuple(np.argwhere(large[2 * move, 0])[0] // 2) for move in range(5)]
    assert marked == [(3 + down, 4 + right) for down, right in digits.MOVES]


def test_the_data_set_is_scikit_learns(tmp_path):
    digits.save(tmp_path / "digits.npz")
    with np.load(tmp_path / "digits.npz") as arrays:
        assert arrays["images"].shape == (5 * 1797, 1, 16, 16)
        assert 0.0 <= arrays["images"].min() < arrays["images"].max() <= 1.0
        assert set(arrays["labels"].tolist()) == set(range(10))
