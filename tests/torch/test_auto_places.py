"""Buckets are known again from one pass to the next."""

import torch

from gradwire.torch.auto.timings import Places


def test_a_bucket_that_is_the_same_has_one_place_and_is_asked_about_once():
    places, asked = Places(), []

    def codable():
        asked.append(1)
        return True

    buffer = torch.zeros(8)
    first = places.of((1, 2), buffer, codable)
    assert places.of((1, 2), torch.ones(8), codable) is first
    assert len(asked) == 1
    assert (first.numel, first.itemsize, first.codable, first.halvable) == (8, 4, True, True)


def test_another_bucket_has_another_place():
    places = Places()
    first = places.of((1, 2), torch.zeros(8), lambda: True)
    for key, buffer in (
        ((1,), torch.zeros(8)),
        ((1, 2), torch.zeros(9)),
        ((1, 2), torch.zeros(9, dtype=torch.float64)),
    ):
        other = places.of(key, buffer, lambda: True)
        assert other != first
        assert other.halvable == (buffer.dtype == torch.float32)


def test_no_codec_is_for_a_sparse_bucket():
    place = Places().of((1,), torch.zeros(4).to_sparse(), lambda: True)
    assert not place.codable
    assert not place.halvable
