"""The verification of drafts inside the policy's own scoring pass.

`Verifier` is a reducer for `Policy.reduce`: it sees the sampling law of each draft position once, in order, keeps the
few numbers that the rule and the loss need, and draws the token that replaces the first rejected one while the law is
at hand. No second pass, and no [T, V] tensor. Random numbers are addressed, so all tensor-parallel ranks agree.

Shapes: T draft tokens of a row, t of them in a chunk, K stored candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nemo_specrl.speculation.acceptance import Evidence, Law, Lenient, OneHot, Probs, Rule, draw, ratio
from nemo_specrl.speculation.randomness import Stream, uniforms
from nemo_specrl.types import FloatArray, IntArray, Rollout, TopK

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Draft:
    """The part of an earlier rollout that may become a prefix: at most R tokens, and no token after one that the
    model cannot be fed (it has p = 0, and is rejected where it stands)."""

    rollout: Rollout
    length: int
    """T, draft tokens."""
    unknown_last: bool
    """Whether the last draft token is outside the model's vocabulary."""

    @staticmethod
    def of(rollout: Rollout, *, limit: int, vocab_size: int) -> Draft | None:
        """The draft in `rollout` under a response limit R; None if there is nothing to verify."""
        ids = rollout.token_ids[:limit]
        outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
        length = int(outside[0]) + 1 if len(outside) else len(ids)
        return Draft(rollout, length, len(outside) > 0) if length else None

    @property
    def token_ids(self) -> IntArray:
        """[T] as drafted."""
        return self.rollout.token_ids[: self.length]

    @property
    def scorable_ids(self) -> IntArray:
        """[T] what a model may be fed: an unknown last token is replaced by 0 (nothing that follows is looked at)."""
        if not self.unknown_last:
            return self.token_ids
        return np.concatenate([self.token_ids[:-1], np.zeros(1, self.token_ids.dtype)])

    @property
    def ended(self) -> bool:
        """Whether the rollout's own end lies inside the draft."""
        return self.rollout.finish_reason == "stop" and self.length == self.rollout.length and not self.unknown_last


@dataclass(frozen=True)
class Sums:
    """Sums over verified positions; rates are ratios of them."""

    positions: int = 0
    accept: float = 0.0
    """Probability that the draft token alone is accepted (`block`: as under `exact`)."""
    tv: float = 0.0
    """Total variation between q and p: 1 - sum min over S and the lumped tails (a lower bound), or with no S stored
    its unbiased one-sample estimate 1 - min(1, p(y)/q(y))."""
    tail: float = 0.0
    """q's mass outside S: what the rule loses by truncated storage."""
    entropy: float = 0.0
    """Entropy of p, nats; 0 where only an engine's log-prob is known."""
    bias: float = 0.0
    """TV between the rule's law and p, where it can be told (`bias_positions`)."""
    bias_positions: int = 0

    def __add__(self, other: Sums) -> Sums:
        theirs = vars(other)
        return Sums(**{name: mine + theirs[name] for name, mine in vars(self).items()})


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of one draft. `kept` tokens stay; the arrays have one more entry for a replacement."""

    kept: int
    replacement: int | None
    """Drawn from the rule's residual at position `kept`; None where nothing was rejected, or by an engine."""
    exclude: int | None
    """A token that the continuation must not begin with (one_hot verified by an engine)."""
    policy_logprobs: FloatArray
    """log p of each decided token."""
    law_logprobs: FloatArray
    """log-prob of each under the law that it really has."""
    topk: TopK | None
    """That law's candidates."""
    sums: Sums


@dataclass(frozen=True, slots=True)
class _End:
    """Where a draft ends, as far as is known."""

    kept: int
    token: int | None
    policy_logprob: float = 0.0
    law_logprob: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk's reduction; its arrays stop after the position that ended the draft."""

    policy_logprobs: FloatArray
    law_logprobs: FloatArray
    topk: TopK | None
    sums: Sums
    end: _End | None


class Verifier:
    """A reducer over a list of drafts: pass `rows` to the policy in this order, then give its answer to `collect`."""

    def __init__(self, rule: Rule, drafts: Sequence[Draft], *, seed: int, step: int, topk: int) -> None:
        """`topk`: candidates of the new law to keep per position (0 = none). ValueError for a draft that lacks the
        candidates which the rule, or its law's own candidates, need."""
        assert rule.verifies, "this rule keeps tokens without looking at p"
        for draft in drafts:
            if draft.rollout.topk is None and (rule.needs_topk or (topk and not rule.exact)):
                raise ValueError(
                    f"reuse.rule={type(rule).__name__.lower()} needs the stored candidates of each cached token and "
                    "this cache was filled without; set reuse.topk > 0 and start from an empty cache"
                )
        self.rule, self.drafts, self.seed, self.step, self.topk = rule, list(drafts), seed, step, topk
        self._state: dict[int, tuple[float, _End | None, Probs]] = {}

    @property
    def rows(self) -> list[tuple[IntArray, IntArray]]:
        """(prompt ids, response ids) of each draft, as the policy is to score them."""
        return [(d.rollout.prompt_ids, d.scorable_ids) for d in self.drafts]

    def __call__(self, row: int, start: int, logprobs: torch.Tensor) -> Part:
        """Reduce positions start .. start + t - 1 of a row; `logprobs` [t, V] of the sampling law."""
        draft, rule = self.drafts[row], self.rule
        stop = start + len(logprobs)
        before, end, u = self._state[row] if start else (1.0, None, self._uniforms(draft, "accept"))
        e, ids, entropy = self._evidence(draft, start, logprobs)
        weights = rule.weights(e, before)
        tests = rule.test(e, weights)
        passed = u[start:stop] < tests
        if rule.longest:
            passed[0] |= start == 0
            ends = np.flatnonzero(passed)[-1:]
        else:
            ends = np.flatnonzero(~passed)[:1] if end is None else np.zeros(0, np.int64)
        alive = 0 if end is not None and not rule.longest else len(e.p)
        law = rule.law(e)
        for i in ends:
            end = self._replace(draft, start + int(i), logprobs[int(i)], ids[i], e.q_top[i], float(weights[i]))
            if not rule.longest:
                alive = int(i) + 1
            if law is not None and e.truncated and end.token is not None:
                p = np.exp(end.policy_logprob)
                bump = law.bump[i][ids[i] == end.token].sum()
                end = _End(end.kept, end.token, end.policy_logprob, float(np.log(law.scale[i] * p + bump)))
        if rule.longest and stop == draft.length and u[-1] < rule.final(float(weights[-1])):
            end = None
        self._state[row] = (float(weights[-1]), end, u)
        if stop == draft.length:  # the row is done
            del self._state[row]
        with np.errstate(divide="ignore"):
            log_p, log_law = np.log(e.p), np.log(e.p if law is None else law.at_draft)
        scale, bump = (None, None) if law is None else (law.scale[:alive], law.bump[:alive])
        return Part(
            log_p[:alive].astype(np.float32),
            log_law[:alive].astype(np.float32),
            _top(logprobs[:alive], self.topk, ids[:alive], scale, bump) if self.topk else None,
            _sums(e, ratio(e.p, e.q) if rule.longest else tests, law, entropy),
            end,
        )

    def collect(self, parts: Sequence[Sequence[Part]]) -> list[Verification]:
        """One `Verification` per draft from the reductions of its chunks."""
        return [self._collect(draft, list(chunks)) for draft, chunks in zip(self.drafts, parts, strict=True)]

    def _collect(self, draft: Draft, chunks: list[Part]) -> Verification:
        end = chunks[-1].end
        kept = draft.length if end is None else end.kept
        policy = np.concatenate([c.policy_logprobs for c in chunks])[:kept]
        law = np.concatenate([c.law_logprobs for c in chunks])[:kept]
        topk = TopK.concat([c.topk for c in chunks if c.topk is not None]) if self.topk else None
        decided = kept
        if end is not None and end.token is not None:
            policy = np.append(policy, np.float32(end.policy_logprob))
            law = np.append(law, np.float32(end.law_logprob))
            decided += 1
        return Verification(
            kept=kept,
            replacement=None if end is None else end.token,
            exclude=None,
            policy_logprobs=policy,
            law_logprobs=law,
            # A copy: the cache keeps it, and a view would keep the rejected positions alive with it.
            topk=None if topk is None else TopK(topk.ids[:decided].copy(), topk.logprobs[:decided].copy()),
            sums=sum((c.sums for c in chunks), Sums()),
        )

    def _uniforms(self, draft: Draft, stream: Stream) -> Probs:
        """[T + 1]: one a draft token, and one for the draft as a whole."""
        return uniforms(self.seed, self.step, draft.rollout.prompt_key, draft.rollout.slot, stream, draft.length + 1)

    def _evidence(self, draft: Draft, start: int, logprobs: torch.Tensor) -> tuple[Evidence, IntArray, Probs]:
        """(evidence, S [t, K], entropy [t]): everything that is read of the chunk's vocabulary."""
        import torch

        stop, (_, vocab) = start + len(logprobs), logprobs.shape
        ids, q_top = _candidates(draft.rollout.topk, start, stop)
        inside = (ids >= 0) & (ids < vocab)
        columns = np.concatenate([draft.scorable_ids[start:stop, None], np.where(inside, ids, 0)], axis=1)
        picked = logprobs.gather(1, torch.as_tensor(columns, dtype=torch.int64, device=logprobs.device))
        probs = _exp(picked.float().cpu().numpy())
        p, p_top = probs[:, 0], probs[:, 1:] * inside
        if draft.unknown_last and stop == draft.length:
            p[-1] = 0.0
        if ids.shape[1]:
            q = np.where(ids == draft.token_ids[start:stop, None], q_top, 0.0).sum(1)
        else:
            q = _exp(draft.rollout.logprobs[start:stop])
        entropy = torch.special.entr(logprobs.exp()).sum(-1).double().cpu().numpy()
        return Evidence(p, q, p_top, q_top), ids, entropy

    def _replace(self, draft: Draft, at: int, logprobs: torch.Tensor, ids: IntArray, q: Probs, weight: float) -> _End:
        """End the draft at position `at` with a token from the rule's residual; `logprobs` [V]."""
        log_p = logprobs.double().cpu().numpy()
        p = np.exp(log_p)
        u = float(self._uniforms(draft, "residual")[at])
        token = draw(self.rule.residual(p, int(draft.token_ids[at]), ids, q, weight), u)
        if token < 0:  # rejected on a rounding error only: p = q there, so p is the residual's limit
            token = draw(p, u)
        return _End(at, token, float(log_p[token]), float(log_p[token]))


def verify_logprobs(rule: Rule, draft: Draft, logprobs: FloatArray, *, seed: int, step: int) -> Verification:
    """Verify by an engine's log-probs of the draft tokens alone, [T] at temperature 1: `lenient` and `one_hot`.

    The continuation begins at the first rejected position; under one_hot it must not begin with `exclude`. ValueError
    for rules that need more of the law."""
    if not isinstance(rule, Lenient | OneHot):
        raise ValueError(
            f"reuse.rule={type(rule).__name__.lower()} needs the policy's whole law at the first rejected token, and "
            "an engine returns one log-prob a token; set reuse.verifier=policy"
        )
    p = _exp(logprobs[: draft.length])
    if draft.unknown_last:
        p[-1] = 0.0
    q = _exp(draft.rollout.logprobs[: draft.length])
    nothing = np.zeros((draft.length, 0))
    e = Evidence(p, q, nothing, nothing)
    tests = rule.test(e, rule.weights(e))
    u = uniforms(seed, step, draft.rollout.prompt_key, draft.rollout.slot, "accept", draft.length)
    failed = np.flatnonzero(u >= tests)
    kept = int(failed[0]) if len(failed) else draft.length
    law = rule.law(e)
    return Verification(
        kept=kept,
        replacement=None,
        exclude=int(draft.token_ids[kept]) if isinstance(rule, OneHot) and kept < draft.length else None,
        policy_logprobs=logprobs[:kept].astype(np.float32),
        law_logprobs=np.log((p if law is None else law.at_draft)[:kept]).astype(np.float32),
        topk=None,
        sums=_sums(e, tests, law, np.zeros(draft.length)),
    )


def _candidates(topk: TopK | None, start: int, stop: int) -> tuple[IntArray, Probs]:
    """S [t, K] and q on it; K = 0 where no candidates were stored."""
    if topk is None:
        return np.zeros((stop - start, 0), np.int32), np.zeros((stop - start, 0))
    return topk.ids[start:stop], _exp(topk.logprobs[start:stop])


def _exp(logprobs: FloatArray) -> Probs:
    """Probabilities of fp32 log-probs: exponentiated as fp32, three times as fast and no less right. p and q go
    through the same function, so that equal log-probs stay equal."""
    return np.exp(logprobs.astype(np.float32, copy=False)).astype(np.float64)


def _sums(e: Evidence, accept: Probs, law: Law | None, entropy: Probs) -> Sums:
    if e.truncated:
        tail = np.maximum(1.0 - e.q_top.sum(1), 0.0)
        overlap = np.minimum(e.p_top, e.q_top).sum(1) + np.minimum(tail, np.maximum(1.0 - e.p_top.sum(1), 0.0))
    else:
        tail = np.zeros(len(e.p))
        overlap = ratio(e.p, e.q)
    tv = np.maximum(1.0 - overlap, 0.0)
    told = law is None or e.truncated
    bias = law.bias(e) if law is not None and told else np.zeros(1)
    return Sums(
        positions=len(e.p),
        accept=float(accept.sum()),
        tv=float(tv.sum()),
        tail=float(tail.sum()),
        entropy=float(entropy.sum()),
        bias=float(bias.sum()),
        bias_positions=len(e.p) if told else 0,
    )


def _top(logprobs: torch.Tensor, k: int, ids: IntArray, scale: Probs | None, bump: Probs | None) -> TopK:
    """The K most likely tokens of p [t, V], or of the law scale * p + bump on S."""
    import torch

    k_out = min(k, logprobs.shape[1])
    if scale is None or bump is None or not ids.shape[1]:
        values, found = logprobs.topk(k_out, dim=-1)
    else:

        def like(array: Probs) -> torch.Tensor:
            return torch.as_tensor(array, device=logprobs.device, dtype=logprobs.dtype)

        law = logprobs.exp() * like(scale)[:, None]
        inside = (ids >= 0) & (ids < logprobs.shape[1])
        columns = torch.as_tensor(np.where(inside, ids, 0), dtype=torch.int64, device=logprobs.device)
        law.scatter_add_(1, columns, like(np.where(inside, bump, 0.0)))
        values, found = law.topk(k_out, dim=-1)
        values = values.log()
    top_values = values.float().cpu().numpy()
    top_ids = np.where(np.isneginf(top_values), -1, found.cpu().numpy()).astype(np.int32)
    missing = ((0, 0), (0, k - k_out))
    return TopK(np.pad(top_ids, missing, constant_values=-1), np.pad(top_values, missing, constant_values=-np.inf))
