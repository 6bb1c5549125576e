"""Where a head from scratch starts (ours): the policy's last layer, fed a guess of its next input.

Were the input of the policy's last layer at position t + 1 known at t, that layer, the final norm and the LM head would
make the policy's own law of token t + 2 of it. All three are in the head from the start (weights.py); its projection
starts as the linear map from [norm(hidden t); norm(embedding of token t + 1)] that comes nearest to that input, in
least squares over the policy's own rollouts. Adam would need thousands of steps for what one linear solve gives.

Shapes: N positions, H hidden, I = 2 H inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from jaxtyping import Float

RIDGE = 1e-3
"""Ridge, relative to the mean square of a normed input (1). Between 1e-2 and 1e-4 it makes no difference."""


class LeastSquares:
    """Normal equations of a linear map from [N, 2H] inputs to [N, H] targets, in fp64."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        self._gram = torch.zeros(2 * hidden, 2 * hidden, dtype=torch.float64, device=device)
        self._cross = torch.zeros(2 * hidden, hidden, dtype=torch.float64, device=device)
        self._count = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, inputs: Float[torch.Tensor, "N I"], targets: Float[torch.Tensor, "N H"]) -> None:
        """Positions of one micro-batch."""
        x = inputs.double()
        self._gram.addmm_(x.T, x)
        self._cross.addmm_(x.T, targets.double())
        self._count += len(x)

    def solve(self, group: dist.ProcessGroup | None) -> tuple[Float[torch.Tensor, "H I"], int]:
        """([H, 2H] the map, how many positions it rests on), over all ranks of `group`, the same on each."""
        if group is not None:
            for part in (self._gram, self._cross, self._count):
                dist.all_reduce(part, group=group)
        n = int(self._count)
        ridge = RIDGE * max(n, 1) * torch.eye(len(self._gram), dtype=torch.float64, device=self._gram.device)
        return torch.linalg.solve(self._gram + ridge, self._cross).T.contiguous(), n
