"""The verification of drafts inside the policy's own scoring pass.

`Verifier` is a reducer for `Policy.reduce`: it sees the sampling law of each draft position once, in order, keeps the
few numbers that the rule and the loss need, and draws the token that replaces the first rejected one from the law that
it saw there. No second pass, and no [T, V] tensor. Random numbers are addressed, so all tensor-parallel ranks agree.

The cost must vanish in a step (benchmarks/reuse_planning.py): one transfer from the device a chunk, S read at every
position only by the rules that need it there, nothing but [t] sums once a chain has ended.

Shapes: T draft tokens of a row, t of them in a chunk, K stored candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.speculation import vocabulary
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
    """Sums over verified positions; rates are ratios of them. The draft token y is a draw from q, so that a function of
    y is an unbiased one-sample estimate of its mean under q: `tv` and `tail` need no sum over the vocabulary."""

    positions: int = 0
    accept: float = 0.0
    """Probability that the draft token alone is accepted (`block`: as under `exact`)."""
    tv: float = 0.0
    """Total variation between q and p, estimated by 1 - min(1, p(y)/q(y))."""
    tail: float = 0.0
    """q's mass outside S, which the rule loses by truncated storage, estimated by the share of y outside S."""
    entropy: float = 0.0
    """Entropy of p, nats; 0 where only an engine's log-prob is known."""
    bias: float = 0.0
    """TV between the rule's law and p, where that law applied and can be told (`bias_positions`)."""
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


@dataclass(slots=True)
class _Row:
    """A draft under way: what the chunks so far have shown."""

    columns: torch.Tensor
    """[T, 1 + K] int64, on the policy's device: y, and S where the rule reads it at every position."""
    inside: NDArray[np.bool_] | None
    """[T, K] entries of S that are tokens of the model; None = all."""
    outside: NDArray[np.bool_]
    """[T] whether y lies outside S, where S is stored."""
    q: Probs
    """[T] q(y)."""
    q_seen: Probs
    """[T] as the rule sees it: 0 outside S."""
    u: Probs
    """[T + 1] one uniform a draft token, and one for the draft as a whole."""
    log_p: FloatArray
    """[T] log p(y), as far as the chunks went; so are the next three."""
    told: FloatArray
    """[T] log-prob of y under the rule's law."""
    entropy: FloatArray
    """[T]"""
    topk: TopK | None
    """[T, K'] the new law's candidates."""
    weight: float = 1.0
    """The draft's weight before the next chunk."""
    bias: float = 0.0
    bias_positions: int = 0
    end: tuple[int, float, torch.Tensor] | None = None
    """(position, weight before it, log-probs [V]) where the draft ends, as far as is known."""


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
        self._open: dict[int, _Row] = {}

    @property
    def rows(self) -> list[tuple[IntArray, IntArray]]:
        """(prompt ids, response ids) of each draft, as the policy is to score them."""
        return [(d.rollout.prompt_ids, d.scorable_ids) for d in self.drafts]

    def __call__(self, row: int, start: int, logprobs: torch.Tensor) -> Verification | None:
        """Reduce positions start .. start + t - 1 of a row; `logprobs` [t, V] of the sampling law. The row's last chunk
        gives its verification, the others None."""
        draft, rule, t = self.drafts[row], self.rule, logprobs.shape[0]
        if start == 0:
            self._open[row] = self._begin(draft, logprobs)
        state, chunk = self._open[row], slice(start, start + t)
        dead = state.end is not None and not rule.longest
        e = _evidence(draft, state, chunk, logprobs, alone=dead)
        if not dead:
            weights = rule.weights(e, state.weight)
            passed = state.u[chunk] < rule.test(e, weights)
            alive = t
            if rule.longest:
                passed[0] |= start == 0
                state.weight = float(weights[-1])
                ends = np.flatnonzero(passed)[-1:].tolist()
            else:
                ends = [] if passed.all() else [int(passed.argmin())]
            for i in ends:
                # A copy of the law at that position: a view would keep the whole chunk.
                state.end = (start + i, float(weights[i]), logprobs[i].clone())
                alive = t if rule.longest else i + 1
            if alive < t:
                e, logprobs = e.first(alive), logprobs[:alive]
            self._keep(state, start, e, logprobs)
        if chunk.stop < draft.length:
            return None
        del self._open[row]
        return self._finish(draft, state)

    def collect(self, parts: Sequence[Sequence[Verification | None]]) -> list[Verification]:
        """One `Verification` per draft from the reductions of its chunks."""
        found = [chunks[-1] for _, chunks in zip(self.drafts, parts, strict=True)]
        assert all(verified is not None for verified in found), "every row was reduced to its end"
        return [verified for verified in found if verified is not None]

    def _begin(self, draft: Draft, logprobs: torch.Tensor) -> _Row:
        """What is needed of a row as a whole."""
        import torch

        n, vocab, old = draft.length, logprobs.shape[1], draft.rollout.topk
        columns, inside, outside = draft.scorable_ids[:, None], None, np.zeros(n, bool)
        q = _exp(draft.rollout.logprobs[:n]).astype(np.float64)
        if old is not None:
            ids, y = old.ids[:n], draft.token_ids
            outside = ids[:, 0] != y  # most draft tokens are the likeliest
            rest = np.flatnonzero(outside)
            outside[rest] = (ids[rest] != y[rest, None]).all(1)
            if self.rule.reads_topk:
                known = (ids >= 0) & (ids < vocab)
                inside = None if known.all() else known
                columns = np.concatenate([columns, ids if inside is None else np.where(inside, ids, 0)], 1)
        return _Row(
            columns=torch.as_tensor(columns, device=logprobs.device).long(),
            inside=inside,
            outside=outside,
            q=q,
            q_seen=q * ~outside if outside.any() else q,
            u=self._uniforms(draft, "accept", n + 1),
            log_p=np.empty(n, np.float32),
            told=np.empty(n, np.float32),
            entropy=np.empty(n, np.float32),
            topk=TopK(np.empty((n, self.topk), np.int32), np.empty((n, self.topk), np.float32)) if self.topk else None,
        )

    def _keep(self, state: _Row, start: int, e: Evidence, logprobs: torch.Tensor) -> None:
        """Keep the law of the positions from `start` on at which the draft was alive, and its candidates."""
        chunk = slice(start, start + len(e.p))
        law = self.rule.law(e) if e.truncated else None
        if law is not None:
            with np.errstate(divide="ignore"):
                state.told[chunk] = np.log(law.at_draft)
            state.bias += float(law.bias(e).sum())
            state.bias_positions += len(e.p)
        if state.topk is not None:
            _top(logprobs, law, state.columns[chunk, 1:], state.topk[chunk])

    def _finish(self, draft: Draft, state: _Row) -> Verification:
        """The verification of a row that was seen whole."""
        rule, end = self.rule, state.end
        if rule.longest and state.u[-1] < rule.final(state.weight):
            end = None
        kept = draft.length if end is None else end[0]
        p = _exp(state.log_p).astype(np.float64)
        e = Evidence.of_draft(p, state.q_seen)
        told, bias, bias_positions = state.log_p[:kept], state.bias, state.bias_positions
        if rule.exact:
            bias_positions = draft.length
        elif bias_positions:
            told = state.told[:kept]
        else:
            told = _told(rule, e.first(kept))
        decided = [state.log_p[:kept], told]
        token = None
        if end is not None:
            token, *values = self._replace(draft, *end)
            decided = [np.append(array, np.float32(value)) for array, value in zip(decided, values, strict=True)]
        topk, n = state.topk, len(decided[0])
        if topk is not None and n < draft.length:
            # A copy: the cache keeps it, and a view would keep the rejected positions alive with it.
            topk = TopK(topk.ids[:n].copy(), topk.logprobs[:n].copy())
        return Verification(
            kept=kept,
            replacement=token,
            exclude=None,
            policy_logprobs=decided[0],
            law_logprobs=decided[1],
            topk=topk,
            sums=Sums(
                positions=draft.length,
                accept=float((ratio(p, state.q_seen) if rule.longest else rule.test(e, rule.weights(e))).sum()),
                tv=_tv(p, state.q),
                tail=float(np.count_nonzero(state.outside)),
                entropy=float(state.entropy.sum(dtype=np.float64)),
                bias=bias,
                bias_positions=bias_positions,
            ),
        )

    def _uniforms(self, draft: Draft, stream: Stream, n: int) -> Probs:
        return uniforms(self.seed, self.step, draft.rollout.prompt_key, draft.rollout.slot, stream, n)

    def _replace(self, draft: Draft, at: int, weight: float, logprobs: torch.Tensor) -> tuple[int, float, float]:
        """(token, its log-prob under p, under the rule's law) from the rule's residual at position `at`; `logprobs` [V]
        of p there. On the host, where all ranks of a tensor-parallel group add up alike."""
        log_p = logprobs.float().cpu().numpy()
        p = _exp(log_p)
        u = float(self._uniforms(draft, "residual", at + 1)[at])
        ids, q = _candidates(draft.rollout.topk, at)
        token = draw(self.rule.residual(p, int(draft.token_ids[at]), ids, q, weight), u)
        if token < 0:  # rejected on a rounding error only: p = q there, so p is the residual's limit
            token = draw(p, u)
        log_law = log_p[token]
        if len(ids):
            inside = (ids >= 0) & (ids < len(p))
            q_token = q[ids == token].sum(keepdims=True)
            law = self.rule.law(Evidence(p[[token]], q_token, (p[np.where(inside, ids, 0)] * inside)[None], q[None]))
            if law is not None:  # the bound: what was rejected can be, though rounding may deny it
                log_law = np.log(np.maximum(law.at_draft[0], np.finfo(np.float32).eps * p[token]))
        return token, float(log_p[token]), float(log_law)


def verify_logprobs(rule: Rule, draft: Draft, logprobs: FloatArray, *, seed: int, step: int) -> Verification:
    """Verify by an engine's log-probs of the draft tokens alone, [T] at temperature 1: `lenient` and `one_hot`.

    The continuation begins at the first rejected position; under one_hot it must not begin with `exclude`. ValueError
    for rules that need more of the law."""
    if not isinstance(rule, Lenient | OneHot):
        raise ValueError(
            f"reuse.rule={type(rule).__name__.lower()} needs the policy's whole law at the first rejected token, and "
            "an engine returns one log-prob a token; set reuse.verifier=policy"
        )
    n = draft.length
    p = _exp(logprobs[:n]).astype(np.float64)
    if draft.unknown_last:
        p[-1] = 0.0
    e = Evidence.of_draft(p, _exp(draft.rollout.logprobs[:n]).astype(np.float64))
    tests = rule.test(e, rule.weights(e))
    u = uniforms(seed, step, draft.rollout.prompt_key, draft.rollout.slot, "accept", n)
    failed = np.flatnonzero(u >= tests)
    kept = int(failed[0]) if len(failed) else n
    return Verification(
        kept=kept,
        replacement=None,
        exclude=int(draft.token_ids[kept]) if isinstance(rule, OneHot) and kept < n else None,
        policy_logprobs=logprobs[:kept].astype(np.float32),
        law_logprobs=logprobs[:kept].astype(np.float32) if rule.exact else _told(rule, e.first(kept)),
        topk=None,
        sums=Sums(n, float(tests.sum()), _tv(p, e.q), bias_positions=n if rule.exact else 0),
    )


def _evidence(draft: Draft, state: _Row, chunk: slice, logprobs: torch.Tensor, *, alone: bool) -> Evidence:
    """What a chunk's laws say of its draft tokens, and of S unless of these `alone`: one transfer from their device."""
    import torch

    columns = state.columns[chunk, :1] if alone else state.columns[chunk]
    t, c = columns.shape
    read = torch.cat([vocabulary.at(logprobs, columns).flatten(), vocabulary.entropy(logprobs)]).float().cpu().numpy()
    picked = read[: t * c].reshape(t, c)
    log_p = state.log_p[chunk]
    log_p[:], state.entropy[chunk] = picked[:, 0], read[t * c :]
    if draft.unknown_last and chunk.stop == draft.length:
        log_p[-1] = -np.inf
    p, q = _exp(log_p).astype(np.float64), state.q_seen[chunk]
    if c == 1 or draft.rollout.topk is None:
        return Evidence.of_draft(p, q)
    p_top = _exp(picked[:, 1:])
    if state.inside is not None:
        p_top *= state.inside[chunk]
    return Evidence(p, q, p_top, _exp(draft.rollout.topk.logprobs[chunk]))


def _told(rule: Rule, e: Evidence) -> FloatArray:
    """[t] log-prob of kept draft tokens under the law of a rule that is not exact, S not stored."""
    law = rule.law(e)
    assert law is not None, "an exact rule's law is the policy's"
    return np.log(law.at_draft).astype(np.float32)


def _candidates(topk: TopK | None, at: int) -> tuple[IntArray, FloatArray]:
    """S [K] and q on it at one position; K = 0 where no candidates were stored."""
    if topk is None:
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    return topk.ids[at], _exp(topk.logprobs[at])


def _exp(logprobs: FloatArray) -> FloatArray:
    """Probabilities of log-probs, in fp32: three times as fast as fp64 and no less right. p and q go through the same
    function, so that equal log-probs stay equal."""
    return np.exp(logprobs.astype(np.float32, copy=False))


def _tv(p: Probs, q: Probs) -> float:
    return float(len(p) - ratio(p, q).sum())


def _top(logprobs: torch.Tensor, law: Law | None, columns: torch.Tensor, out: TopK) -> None:
    """Write the most likely tokens of p [t, V], or of the law that differs from p at columns [t, K], to `out`."""
    import torch

    k = min(out.ids.shape[1], logprobs.shape[1])
    if law is None:
        values, found = vocabulary.top(logprobs, k)
    else:
        scale, bump = (torch.as_tensor(a, dtype=logprobs.dtype, device=logprobs.device) for a in (law.scale, law.bump))
        values, found = vocabulary.top_of_law(logprobs, k, scale, bump, columns)
    out.ids[:, k:], out.logprobs[:, k:] = -1, -np.inf
    out.ids[:, :k], out.logprobs[:, :k] = found.cpu().numpy(), values.cpu().numpy()
    if out.logprobs[:, k - 1].min() == -np.inf:  # the least likely: some law has fewer than k tokens
        out.ids[np.isneginf(out.logprobs)] = -1
