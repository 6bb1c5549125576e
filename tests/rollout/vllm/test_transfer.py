from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
import torch

from nemo_specrl.rollout.vllm import transfer


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {f"layer.{i}.weight": torch.randn(16, 8) for i in range(9)}
    tensors["bf16"] = torch.randn(5).bfloat16()
    tensors["view"] = torch.randn(8, 8).T
    tensors["tied"] = tensors["layer.0.weight"]
    return tensors


def never() -> bool:
    return False


def exchange(
    tensors: dict[str, torch.Tensor], folder: Path, ranks: int, chunk_bytes: int
) -> list[dict[str, torch.Tensor]]:
    received: list[dict[str, torch.Tensor]] = [{} for _ in range(ranks)]
    mismatches: list[str] = []

    def take(rank: int) -> None:
        received[rank].update(transfer.receive(folder, rank, mismatches))

    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    sent = transfer.send(tensors.items(), folder, ranks=ranks, answered=never, chunk_bytes=chunk_bytes)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sent == tensors.keys()
    assert mismatches == []
    return received


@pytest.mark.parametrize("chunk_bytes", [1, 700, 2**30])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_gets_every_tensor_whatever_the_chunks(tmp_path: Path, chunk_bytes: int, ranks: int) -> None:
    want = weights()
    for got in exchange(want, tmp_path, ranks, chunk_bytes):
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)
    assert [path.name for path in tmp_path.iterdir()] == ["end"], "chunks are removed once they were taken"


def test_at_most_two_chunks_exist_at_a_time(tmp_path: Path) -> None:
    waits: list[int] = []

    class StuckError(Exception):
        pass

    def answered() -> bool:
        waits.append(len(list(tmp_path.glob("*.safetensors"))))
        raise StuckError

    with pytest.raises(StuckError):
        transfer.send(weights().items(), tmp_path, ranks=1, answered=answered, chunk_bytes=1)
    assert waits == [2]


def test_an_engine_that_takes_and_answers_between_two_looks_has_taken_everything(tmp_path: Path) -> None:
    """A fast engine ended a refit between the look at its marks and the look for its answer: taken for a failure."""

    def answered() -> bool:
        for stamp in tmp_path.glob("*.json"):
            stamp.with_suffix(".done.0").touch()
        return True

    want = weights()
    assert transfer.send(want.items(), tmp_path, ranks=1, answered=answered, chunk_bytes=700) == want.keys()


def test_an_engine_that_ends_early_is_said(tmp_path: Path) -> None:
    with pytest.raises(transfer.CutShortError, match="chunk 0 was not taken"):
        transfer.send(weights().items(), tmp_path, ranks=1, answered=lambda: True)


def test_a_corrupted_chunk_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    mismatches: list[str] = []
    sender = threading.Thread(
        target=transfer.send, args=({"w": torch.ones(4)}.items(), tmp_path), kwargs={"ranks": 1, "answered": never}
    )
    sender.start()
    while not (tmp_path / "end").exists():
        pass
    chunk = tmp_path / "00000.safetensors"
    tensors = load_file(chunk)
    tensors["w"][2] += 1e-7
    save_file(tensors, chunk)
    assert [name for name, _ in transfer.receive(tmp_path, 0, mismatches)] == ["w"]
    sender.join(20)
    assert len(mismatches) == 1
    assert "chunk 0" in mismatches[0]


def test_the_checksum_sees_names_types_shapes_and_bits() -> None:
    base = {"a": torch.zeros(4)}
    others = [
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0])},
    ]
    assert transfer.checksum(base) == transfer.checksum({"a": torch.zeros(4)})
    assert len({transfer.checksum(group) for group in [base, *others]}) == 5


def test_the_receiver_does_not_wait_for_a_sender_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="gone away"):
        list(transfer.receive(tmp_path / "removed", 0, []))


def test_the_folder_is_private_and_removed() -> None:
    with pytest.raises(KeyError), transfer.private_folder() as folder:  # noqa: PT012  the folder is looked at inside
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "x").touch()
        raise KeyError
    assert not folder.exists()
