"""The cache: bounded, exact on restore, and never worse for a failed save."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_specrl.speculation.cache import FILE, RolloutCache, nbytes
from nemo_specrl.types import Rollout, TopK

ROOM = 1 << 20


def made(key: str = "a", slot: int = 0, length: int = 4, k: int = 0, seed: int = 0) -> Rollout:
    rng = np.random.default_rng(seed)
    topk = TopK(rng.integers(0, 99, (length, k)).astype(np.int32), rng.normal(size=(length, k)).astype(np.float32))
    return Rollout(
        prompt_key=key,
        slot=slot,
        prompt_ids=rng.integers(0, 99, 3).astype(np.int32),
        token_ids=rng.integers(0, 99, length).astype(np.int32),
        logprobs=rng.normal(size=length).astype(np.float32),
        policy_version=rng.integers(0, 9, length).astype(np.int32),
        finish_reason="stop" if seed % 2 else "length",
        reused=min(seed, length),
        topk=topk if k else None,
        policy_logprobs=np.zeros(length, np.float32),
    )


def same(a: Rollout, b: Rollout) -> bool:
    arrays = [(a.prompt_ids, b.prompt_ids), (a.token_ids, b.token_ids), (a.logprobs, b.logprobs)]
    arrays += [(a.policy_version, b.policy_version)]
    if (a.topk is None) != (b.topk is None):
        return False
    if a.topk is not None and b.topk is not None:
        arrays += [(a.topk.ids, b.topk.ids), (a.topk.logprobs, b.topk.logprobs)]
    return (
        (a.prompt_key, a.slot, a.finish_reason, a.reused) == (b.prompt_key, b.slot, b.finish_reason, b.reused)
        and all(x.dtype == y.dtype and x.shape == y.shape and (x == y).all() for x, y in arrays)
        and b.policy_logprobs is None
    )


def test_lookup_is_by_prompt_slot_and_age() -> None:
    cache = RolloutCache(ROOM, delay=1, max_age=2)
    for epoch in (0, 1):
        for slot in (0, 1):
            cache.put(made("a", slot, seed=10 * epoch + slot), epoch)
    found = cache.lookup("a", 1, 2)
    assert found is not None
    assert same(made("a", 1, seed=11), found)
    assert cache.lookup("a", 0, 1) is not None, "the epoch before"
    assert cache.lookup("a", 0, 0) is None, "never from its own epoch"
    assert cache.lookup("a", 0, 4) is None, "too old"
    assert cache.lookup("b", 0, 1) is None
    assert cache.lookup("a", 2, 1) is None
    assert cache.counts == {"hits": 2, "misses": 4, "dropped": 0, "expired": 0}


def test_delay_skips_the_newest() -> None:
    """The paper's ablation: drafts that are two epochs old."""
    cache = RolloutCache(ROOM, delay=2, max_age=3)
    for epoch in range(3):
        cache.put(made(seed=epoch), epoch)
    found = cache.lookup("a", 0, 3)
    assert found is not None
    assert same(made(seed=1), found)


def test_a_drafters_window_is_kept_beyond_the_age_of_reuse() -> None:
    cache = RolloutCache(ROOM, max_age=2, keep=4)
    for epoch in range(6):
        cache.put(made(seed=epoch), epoch)
    assert [epoch for epoch, _ in cache] == [1, 2, 3, 4, 5]


def test_old_epochs_expire_and_a_second_put_replaces() -> None:
    cache = RolloutCache(ROOM, max_age=2)
    for epoch in range(5):
        cache.put(made(seed=epoch), epoch)
        cache.put(made(seed=epoch + 50), epoch)
    assert [epoch for epoch, _ in cache] == [3, 4], "epoch 2's is superseded, though not too old"
    assert cache.counts["expired"] == 3
    assert cache.bytes == sum(nbytes(r) for _, r in cache)
    found = cache.lookup("a", 0, 5)
    assert found is not None
    assert same(made(seed=54), found)


def test_bytes_are_bounded_and_the_oldest_go_first() -> None:
    """The documented cost: 12 bytes a token and 8 K more with K candidates, 4 a prompt token."""
    one = nbytes(made(length=100, k=20))
    assert one == 100 * (12 + 8 * 20) + 4 * 3
    cache = RolloutCache(3 * one, max_age=2)
    for slot in range(5):
        cache.put(made(slot=slot, length=100, k=20), 0)
    assert [r.slot for _, r in cache] == [2, 3, 4]
    assert cache.bytes == 3 * one
    assert cache.counts["dropped"] == 2
    assert cache.lookup("a", 0, 1) is None
    cache.put(made(slot=9, length=1000, k=20), 0)
    assert len(cache) == 3, "one that alone is too large is not traded for all others"
    assert cache.counts["dropped"] == 3
    assert cache.metrics() == {
        "cache/rollouts": 3, "cache/mib": 3 * one / 2**20,
        "cache/hits": 0, "cache/misses": 1, "cache/dropped": 3, "cache/expired": 0,
    }  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["a", "bb"]), st.integers(0, 2), st.integers(0, 5)), max_size=12
    ),
    st.integers(1, 1500),
)
def test_the_index_follows_the_contents(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, str, int, int]], room: int
) -> None:
    cache = RolloutCache(room, max_age=2)
    for i, (epoch, key, slot, length) in enumerate(sorted(puts)):
        cache.put(made(key, slot, length, k=2, seed=i), epoch)
        assert cache.bytes == sum(nbytes(r) for _, r in cache) <= room
    folder = tmp_path_factory.mktemp("cache")
    cache.save(folder)
    again = RolloutCache(room, max_age=2)
    again.load(folder)
    assert [epoch for epoch, _ in again] == [epoch for epoch, _ in cache]
    assert all(same(a, b) for (_, a), (_, b) in zip(cache, again, strict=True))
    assert (again.bytes, again.counts) == (cache.bytes, cache.counts)
    for epoch, key, slot in [(e, k, s) for e in range(6) for k in ("a", "bb") for s in range(3)]:
        assert (cache.lookup(key, slot, epoch) is None) == (again.lookup(key, slot, epoch) is None)


def test_restored_rollouts_of_mixed_kinds_are_exact(tmp_path: Path) -> None:
    cache = RolloutCache(ROOM)
    for slot, (length, k) in enumerate([(5, 3), (0, 3), (7, 0), (1, 20)]):
        cache.put(made(slot=slot, length=length, k=k, seed=slot), 1)
    cache.lookup("a", 0, 2)
    cache.save(tmp_path)
    again = RolloutCache(ROOM)
    again.put(made("gone"), 0)
    again.load(tmp_path)
    assert len(again) == 4
    assert all(same(a, b) for (_, a), (_, b) in zip(cache, again, strict=True))
    assert again.counts == {"hits": 1, "misses": 0, "dropped": 0, "expired": 0}


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "flipped", "not a zip"])
def test_a_damaged_file_is_named_with_a_remedy(tmp_path: Path, damage: str) -> None:
    cache = RolloutCache(ROOM)
    cache.put(made(length=50, k=3), 0)
    cache.save(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = whole.index(cache.lookup("a", 0, 1).logprobs.tobytes())  # type: ignore[union-attr]
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes(
            {"empty": b"", "half": whole[: len(whole) // 2], "flipped": flipped, "not a zip": b"hello"}[damage]
        )
    with pytest.raises(ValueError, match="resume from an older checkpoint") as caught:
        cache.load(tmp_path)
    assert str(path) in str(caught.value)
    assert len(cache) == 1, "what was in memory stays"


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = RolloutCache(ROOM)
    monkeypatch.setattr("nemo_specrl.speculation.cache.FORMAT", 99)
    cache.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format is 99"):
        cache.load(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    cache = RolloutCache(ROOM)
    cache.put(made(), 0)
    cache.save(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    cache.put(made(slot=1), 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="Free space there") as caught:
        cache.save(tmp_path)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / FILE).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [FILE]
    cache.save(tmp_path)
    assert (tmp_path / FILE).read_bytes() != before


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="delay <= max_age"):
        RolloutCache(ROOM, delay=3, max_age=2)
    with pytest.raises(ValueError, match=r"reuse\.cache_mib"):
        RolloutCache(0)
