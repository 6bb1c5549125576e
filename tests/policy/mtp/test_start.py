"""The closed-form start of a head from scratch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_specrl.config.head import HeadConfig
from nemo_specrl.contracts.rows import Row
from nemo_specrl.policy.mtp.start import RIDGE, LeastSquares
from tests.policy.megatron.ranks import make_rows
from tests.policy.mtp.ranks import head_of
from tests.policy.mtp.test_head import make

PROJECTION = "model.mtp_layers.0.input_proj.weight"


def test_a_linear_map_is_found_again() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(3, 6, generator=generator)
    fit = LeastSquares(3, torch.device("cpu"))
    for _ in range(4):
        x = torch.randn(500, 6, generator=generator)
        fit.add(x, x @ true.T)
    found, n = fit.solve(None)
    assert n == 2000
    # Inputs of unit variance: the ridge takes away its own share.
    torch.testing.assert_close(found.float() * (1 + RIDGE), true, atol=1e-3, rtol=0)


def test_without_positions_there_is_no_map() -> None:
    assert LeastSquares(2, torch.device("cpu")).solve(None)[1] == 0


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_the_projection_foretells_the_last_layers_next_input(checkpoints: dict[str, Path], family: str) -> None:
    """Against Hugging Face's hidden states and NumPy's solver."""
    import transformers

    rows = [*make_rows(), *make_rows(seed=3)]
    policy = make(checkpoints[family], HeadConfig())
    weights = {name: tensor.clone() for name, tensor in policy.weights()}
    scratch = dict(head_of(policy).weights())[PROJECTION].clone()
    head_of(policy).start(rows)
    found = dict(head_of(policy).weights())
    assert all(torch.equal(weights[name], tensor) for name, tensor in policy.weights())
    assert not torch.equal(found[PROJECTION], scratch)

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints[family], dtype=torch.float32)
    last: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
    states: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    inputs, targets = [], []
    for row in rows:
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]).astype(np.int64))
        with torch.no_grad():
            model(ids[None])
        for t in range(len(row.prompt_ids) - 1, len(ids) - 2):  # x_{t+2} is a response token, drafted from t
            token = model.model.embed_tokens.weight[ids[t + 1]].detach()
            parts = [x / x.square().mean().add(model.config.rms_norm_eps).sqrt() for x in (states[-1][0, t], token)]
            inputs.append(torch.cat(parts).double().numpy())
            targets.append(last[-1][0, t + 1].double().numpy())
    x, y = np.stack(inputs), np.stack(targets)
    want = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y).T
    np.testing.assert_allclose(found[PROJECTION].numpy(), want, atol=2e-4)


def test_only_a_head_that_is_new_gets_a_start(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    rows = make_rows()
    policy = make(checkpoints["qwen2"], HeadConfig(lr=1e-2))
    head_of(policy).start(rows)
    head_of(policy).train(rows)
    policy.save(tmp_path)
    trained = {name: tensor.clone() for name, tensor in head_of(policy).weights()}
    head_of(policy).start(rows)
    resumed = make(checkpoints["qwen2"], HeadConfig(lr=1e-2))
    resumed.load(tmp_path)
    head_of(resumed).start(rows)
    for one in (policy, resumed):
        assert all(torch.equal(trained[name], tensor) for name, tensor in head_of(one).weights())


def test_rows_too_short_to_draft_leave_the_projection_alone(checkpoints: dict[str, Path]) -> None:
    policy = make(checkpoints["qwen2"], HeadConfig())
    before = {name: tensor.clone() for name, tensor in head_of(policy).weights()}
    head_of(policy).start([Row(np.array([1], np.int32), np.array([2], np.int32))])
    assert all(torch.equal(before[name], tensor) for name, tensor in head_of(policy).weights())
