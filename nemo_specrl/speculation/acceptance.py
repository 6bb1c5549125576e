"""Which draft tokens are kept, and what is drawn where the first one is not: one small rule per class, pure numpy.

Notation (ALGORITHMS of SPEC-RL, section 1): at a position, p is the policy's sampling law, q the law that the draft
token y was drawn from, S the K token ids whose q is stored. Everything outside S is one extra symbol with q-mass
1 - q(S) and p-mass 0, so that p and q are ordinary distributions again and a draft token outside S has p/q = 0. That
view of truncated storage is ours; it makes the chain and block rules exact with any S.

Shapes: t consecutive positions, K stored candidates, V vocabulary. Arrays are probabilities in any float type, and a
rule computes in the type that it is given: the proofs by enumeration (tests/speculation) run this code in float64 and
reach 1e-12; the verifier hands over [t] in float64 and [t, K] in float32, the precision of stored log-probs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.config.registry import resolve
from nemo_specrl.config.rules import RULES, RuleFacts

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Probs: TypeAlias = NDArray[np.floating[Any]]
Ids: TypeAlias = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verification pass knows of t draft positions."""

    p: Float[Probs, " t"]
    """[t] p(y)."""
    q: Float[Probs, " t"]
    """[t] q(y); 0 where S is stored and y lies outside it."""
    p_top: Float[Probs, "t K"]
    """[t, K] p on S; 0 at unused entries."""
    q_top: Float[Probs, "t K"]
    """[t, K] q on S; 0 at unused entries. K = 0: S was not stored, or this rule does not read it here."""

    @property
    def truncated(self) -> bool:
        """Whether S is given."""
        return bool(self.q_top.shape[1])

    @staticmethod
    def of_draft(p: Float[Probs, " t"], q: Float[Probs, " t"]) -> Evidence:
        """Evidence of the draft tokens alone, [t] p(y) and q(y)."""
        nothing = np.zeros((len(p), 0), np.float32)
        return Evidence(p, q, nothing, nothing)

    def first(self, n: int) -> Evidence:
        """Evidence of the first n positions."""
        return Evidence(self.p[:n], self.q[:n], self.p_top[:n], self.q_top[:n])


@dataclass(frozen=True, slots=True)
class Law:
    """The law scale * p + bump_S that a token really has after a rule that does not give p."""

    scale: Float[Probs, " t"]
    """[t]"""
    bump: Float[Probs, "t K"]
    """[t, K] what is added on S."""
    at_draft: Float[Probs, " t"]
    """[t] the law of the draft token itself."""

    def bias(self, e: Evidence) -> Float[Probs, " t"]:
        """[t] TV(law, p); needs S."""
        lost = 1.0 - self.scale
        outside = np.maximum(1.0 - _row_sums(e.p_top), 0.0)
        moved = lost[:, None] * e.p_top
        np.abs(np.subtract(self.bump, moved, out=moved), out=moved)
        return np.asarray(0.5 * (_row_sums(moved) + lost * outside))


class Rule:
    """A chain rule: draft tokens are tested in order and the first failure ends the draft.

    A subclass states its law; whether that is the policy's and what it needs says its line in config/rules.py."""

    facts: ClassVar[RuleFacts]
    reads_topk: ClassVar[bool] = False
    """Whether `test` or `law` read S at every position, where it is stored. False: only `residual` reads it, at the
    one position where the draft ends."""
    longest: ClassVar[bool] = False
    """False: test i passes = token i is kept, and the first failure ends the draft. True: test i passes = the first
    i tokens may be kept, and the last pass counts."""

    @classmethod
    def make(cls, log_lenience: float) -> Rule:
        """The rule at lenience e^log_lenience, where it takes one."""
        return cls()

    @property
    def exact(self) -> bool:
        """See `RuleFacts`."""
        return self.facts.exact

    @property
    def needs_topk(self) -> bool:
        """See `RuleFacts`."""
        return self.facts.needs_topk

    @property
    def verifies(self) -> bool:
        """See `RuleFacts`; False: see `cut`."""
        return self.facts.verifies

    def weights(self, e: Evidence, before: float = 1.0) -> Float[Probs, " n"]:
        """[t + 1] weight of the draft before each position and after the last; 1 for chain rules."""
        return np.ones(len(e.p) + 1)

    def test(self, e: Evidence, weights: Float[Probs, " n"]) -> Float[Probs, " t"]:
        """[t] probability that each position's test passes, given `weights[:t]`."""
        raise AssertionError(f"{type(self).__name__} tests nothing")

    def final(self, weight: float) -> float:
        """Probability that a draft whose tests are over is kept whole."""
        return 1.0

    def residual(
        self, p: Float[Probs, " V"], draft: int, ids: Int[Ids, " K"], q: Float[Probs, " K"], weight: float = 1.0
    ) -> Float[Probs, " V"]:
        """[V] unnormalised law of the token that replaces `draft`; p [V], ids [K] and q [K] of S at that position."""
        return p

    def law(self, e: Evidence) -> Law | None:
        """The law of each position while the draft is alive (the first rejected one included); None = p."""
        return None

    def cut(self, length: int, u: float) -> int:
        """How many of `length` tokens a rule that verifies nothing keeps; `u` is uniform in [0, 1)."""
        raise AssertionError(f"{type(self).__name__} has to verify")


@dataclass(frozen=True)
class Lenient(Rule):
    """SPEC-RL as published: accept with min(1, ell * p/q), continue from p.

    Law, with S stored: mu = min(q, ell*p) on S + (1 - sum_S min(q, ell*p)) * p; tokens outside S are rejected. Not
    exact, not even at ell = 1. Without S (the published rule: any y is tested by its own q) the sum is not known and
    is replaced by its one-sample estimate a = min(1, ell * p(y)/q(y)): mu(y) ~ a*q(y) + (1 - a)*p(y), so that a
    token that was forgiven keeps the q that it was forgiven against, and lenience does not compound."""

    facts: ClassVar[RuleFacts] = RULES["lenient"]
    lenience: float = 1.0
    """ell, positive."""
    reads_topk: ClassVar[bool] = True

    @classmethod
    def make(cls, log_lenience: float) -> Lenient:
        """ell = e^log_lenience."""
        return cls(math.exp(log_lenience))

    def __post_init__(self) -> None:
        if not self.lenience > 0:
            raise ValueError(f"lenience must be positive, not {self.lenience}; set reuse.log_lenience to a number")

    @property
    def bias_bound(self) -> float:
        """The largest TV(mu, p) of a token, whatever p, q and S (ours): with A the set where mu > p and x = p(A),
        mu(A) - p(A) <= min(1, ell*x) * (1 - x), whose maximum is ell/4 for ell <= 2, else 1 - 1/ell."""
        return self.lenience / 4 if self.lenience <= 2 else 1 - 1 / self.lenience

    def test(self, e: Evidence, weights: Float[Probs, " n"]) -> Float[Probs, " t"]:
        return ratio(self.lenience * e.p, e.q)

    def law(self, e: Evidence) -> Law:
        if not e.truncated:
            accept = self.test(e, self.weights(e))
            return Law(1.0 - accept, e.q_top, accept * e.q + (1.0 - accept) * e.p)
        bump = self.lenience * e.p_top
        np.minimum(bump, e.q_top, out=bump)
        scale = np.maximum(1.0 - _row_sums(bump), 0.0)
        return Law(scale, bump, np.minimum(e.q, self.lenience * e.p) + scale * e.p)


@dataclass(frozen=True)
class Exact(Rule):
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023): accept with min(1, p/q), else draw from
    norm(p - min(p, q)). Law: p, for a draft independent of the target and fresh u. Mean acceptance 1 - TV(p, q)."""

    facts: ClassVar[RuleFacts] = RULES["exact"]

    def test(self, e: Evidence, weights: Float[Probs, " n"]) -> Float[Probs, " t"]:
        return ratio(e.p, e.q)

    def residual(
        self, p: Float[Probs, " V"], draft: int, ids: Int[Ids, " K"], q: Float[Probs, " K"], weight: float = 1.0
    ) -> Float[Probs, " V"]:
        return _minus_draft_law(p, ids, q)


@dataclass(frozen=True)
class OneHot(Rule):
    """Accept with p(y), else draw from p without y. Law: p, for any draft however chosen. Mean acceptance sum p*q."""

    facts: ClassVar[RuleFacts] = RULES["one_hot"]

    def test(self, e: Evidence, weights: Float[Probs, " n"]) -> Float[Probs, " t"]:
        return e.p.copy()

    def residual(
        self, p: Float[Probs, " V"], draft: int, ids: Int[Ids, " K"], q: Float[Probs, " K"], weight: float = 1.0
    ) -> Float[Probs, " V"]:
        rest = p.copy()
        if 0 <= draft < len(rest):
            rest[draft] = 0.0
        return rest


@dataclass(frozen=True)
class Block(Rule):
    """Block verification (Sun et al. 2024, arXiv 2403.10444): prefixes are tested jointly and the longest passing one
    is kept. Law: p. Keeps at least as many tokens as `exact` on average.

    With w the running min(1, w * p/q) of the prefix and r = sum (w*p - q)+ at the next position, a prefix passes with
    probability r / (r + 1 - w); the whole draft with w. Past the end of a sequence p = q, so the end-of-sequence
    token closes the block."""

    facts: ClassVar[RuleFacts] = RULES["block"]
    reads_topk: ClassVar[bool] = True
    longest: ClassVar[bool] = True

    def weights(self, e: Evidence, before: float = 1.0) -> Float[Probs, " n"]:
        # X' = min(X + s, 0) in logs is a walk reflected at 0, hence X = walk - running maximum (Lindley).
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(e.q > 0, np.log(e.p) - np.log(e.q), -np.inf)
            start = np.log(before)
        walk = np.concatenate([[start], start + np.cumsum(steps)])
        ceiling = np.maximum(np.maximum.accumulate(walk), 0.0)
        return np.asarray(np.exp(walk - ceiling), dtype=np.float64)

    def test(self, e: Evidence, weights: Float[Probs, " n"]) -> Float[Probs, " t"]:
        w = weights[: len(e.p)].astype(e.p_top.dtype)
        excess = w[:, None] * e.p_top
        excess -= e.q_top
        inside = _row_sums(np.maximum(excess, 0.0, out=excess))
        rest = inside + w * np.maximum(1.0 - _row_sums(e.p_top), 0.0)
        # r = 0 with w = 1 means p = q and nothing is left to correct: the prefix may be kept.
        return np.where(w >= 1.0, 1.0, rest / np.where(w >= 1.0, 1.0, rest + (1.0 - w)))

    def final(self, weight: float) -> float:
        return weight

    def residual(
        self, p: Float[Probs, " V"], draft: int, ids: Int[Ids, " K"], q: Float[Probs, " K"], weight: float = 1.0
    ) -> Float[Probs, " V"]:
        return _minus_draft_law(weight * p, ids, q)


@dataclass(frozen=True)
class Full(Rule):
    """SPEC-RL's ablation `full reuse` (ell = inf): everything is kept, its law is the old one. Not exact."""

    facts: ClassVar[RuleFacts] = RULES["full"]

    def cut(self, length: int, u: float) -> int:
        return length


@dataclass(frozen=True)
class Random(Rule):
    """SPEC-RL's ablation `random reuse`: cut at a uniform position. Kept tokens have their old law. Not exact."""

    facts: ClassVar[RuleFacts] = RULES["random"]

    def cut(self, length: int, u: float) -> int:
        return int(u * (length + 1))


def make_rule(name: str, log_lenience: float = 0.0) -> Rule:
    """The named rule; `log_lenience` is read by `lenient` only. ValueError for an unknown name."""
    targets = {rule: facts.target for rule, facts in RULES.items() if facts.target}
    rule: Rule = resolve(targets, name, "reuse.rule").make(log_lenience)
    return rule


def draw(weights: Float[Probs, " V"], u: float) -> int:
    """The index that uniform `u` in [0, 1) picks from unnormalised `weights` [V], by inverse CDF; -1 if all are 0."""
    return int(draws(weights, np.asarray([u]))[0])


def draws(weights: Float[Probs, " V"], u: Float[Probs, " n"]) -> Int[Ids, " n"]:
    """[n] as `draw`, for uniforms [n]."""
    total = np.cumsum(weights, dtype=np.float64)
    if not total[-1] > 0:
        return np.full(len(u), -1)
    # side="right" never lands on a zero weight, below the total; the bound guards u * total rounding up to it.
    below = np.minimum(u * total[-1], np.nextafter(total[-1], 0.0))
    return np.asarray(np.searchsorted(total, below, side="right"), dtype=np.int64)


def ratio(numerator: Float[Probs, " t"], q: Float[Probs, " t"]) -> Float[Probs, " t"]:
    """min(1, numerator / q), and 0 where q = 0: what q cannot have drawn is never accepted."""
    return np.asarray(np.minimum(numerator, q) / np.maximum(q, np.finfo(np.float32).tiny))


def _row_sums(a: Float[Probs, "t K"]) -> Float[Probs, " t"]:
    """[t] sums of [t, K]: for so few columns a matrix product is three times as fast as `sum`."""
    return np.asarray(a @ np.ones(a.shape[1], a.dtype))


def _minus_draft_law(p: Float[Probs, " V"], ids: Int[Ids, " K"], q: Float[Probs, " K"]) -> Float[Probs, " V"]:
    """(p - q)+ with q on S only."""
    rest = p.copy()
    inside = (ids >= 0) & (ids < len(p))
    rest[ids[inside]] = np.maximum(rest[ids[inside]] - q[inside], 0.0)
    return rest
