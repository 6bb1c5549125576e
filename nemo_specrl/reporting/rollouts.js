"use strict";
// Sampled rollouts. Everything from a run reaches the page as text nodes and data attributes, never as markup.
{
const data = document.getElementById("rollout-data");
const reader = document.querySelector(".reader");
if (data && reader) {
  const steps = JSON.parse(data.textContent);
  const all = steps.flatMap((step, at) => step.rollouts.map(r => ({ ...r, at, step: step.step, epoch: step.epoch })));
  const NAMES = { r: "reused", x: "replacement, drawn by the verification", d: "drafted and accepted", g: "generated",
    u: "generated or drafted, which is not recorded" };
  const right = r => r.reward !== null && r.reward > 0, wrong = r => r.reward !== null && r.reward <= 0;
  const FILTERS = [
    ["all", "every sampled rollout", () => true],
    ["right", "reward above 0", right],
    ["wrong", "reward of 0 or less", wrong],
    ["truncated", "cut by the length limit", r => r.finish === "length"],
    ["not scored", "the verifier failed on it: no reward", r => r.reward === null],
  ];
  const PAGE = 10;
  const select = reader.querySelector("select"), chips = reader.querySelector(".chips");
  const find = reader.querySelector("input"), cards = reader.querySelector(".cards"), more = reader.querySelector(".more");
  let filter = "all", longest = false, shown = PAGE;

  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.append(text);
    return node;
  };
  // What cannot be seen, or would reorder what can: control and format characters (bidi among them), lone surrogates.
  const UNSEEN = /[\p{Cc}\p{Cf}\p{Surrogate}\u2028\u2029\ufff9-\ufffb]/gu;
  const named = c => "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  const write = (node, text) => {
    let from = 0;
    for (const hit of text.matchAll(UNSEEN)) {
      node.append(text.slice(from, hit.index));
      from = hit.index + hit[0].length;
      if (hit[0] === "\n") node.append(make("i", "nl", "\u21b5"), "\n");
      else if (hit[0] === "\t") node.append("\t");
      else node.append(make("i", "unseen", named(hit[0])));
    }
    node.append(text.slice(from));
    return node;
  };

  const counts = r => {
    const found = {};
    for (const letter of r.by) found[letter] = (found[letter] || 0) + 1;
    return found;
  };
  const badge = (text, kind, title) => {
    const node = make("span", "badge " + (kind || ""), text);
    if (title) node.title = title;
    return node;
  };
  const signed = v => (v > 0 ? "+" : v < 0 ? "\u2212" : "") + Math.abs(v).toFixed(2);

  const card = r => {
    const node = make("article", "card " + (right(r) ? "is-right" : wrong(r) ? "is-wrong" : ""));
    const head = make("div", "facts");
    head.append(
      badge(r.reward === null ? "not scored" : right(r) ? "right" : "wrong", r.reward === null ? "" : right(r) ? "ok" : "no"));
    if (r.reward !== null) head.append(badge("reward " + Number(r.reward.toPrecision(4))));
    head.append(badge("advantage " + signed(r.advantage), "", "what the update multiplied these tokens by, before its own options"));
    if (r.finish === "length") head.append(badge("truncated", "warn", "cut by the length limit"));
    else head.append(badge("ended by itself", "", "finish reason: " + r.finish));
    head.append(make("span", "soft", `step ${r.step}, epoch ${r.epoch}, slot ${r.slot}`));
    const own = counts(r), parts = make("div", "parts"), said = [];
    for (const letter of "rxdgu") if (own[letter]) {
      const part = make("span", "part " + letter);
      part.style.flexGrow = own[letter];
      part.title = `${own[letter]} ${NAMES[letter]}`;
      parts.append(part);
      said.push(`${own[letter].toLocaleString("en")} ${NAMES[letter].split(",")[0]}`);
    }
    const prompt = make("details", "prompt"), summary = make("summary");
    summary.append(make("b", "", "Prompt"), write(make("span", "line"), " " + r.prompt.replace(/\s+/gu, " ").slice(0, 160)));
    prompt.append(summary, write(make("pre"), r.prompt));
    prompt.open = r.prompt.length <= 400;
    const gold = make("div", "gold");
    gold.append(make("b", "", "Gold "), write(make("code"), r.answer));
    const body = make("pre", "response");
    body.dir = "auto";
    r.tokens.forEach((text, i) => {
      if (r.left_out && i === r.cut) body.append(make("span", "gap", ` \u2026 ${r.left_out.toLocaleString("en")} tokens left out \u2026 `));
      const token = make("span", "t " + r.by[i]);
      token.dataset.i = i;
      body.append(write(token, text));
    });
    body.rollout = r;
    node.append(head, prompt, gold, body, parts, make("div", "soft tally", `${r.length.toLocaleString("en")} tokens: ${said.join(", ")}`));
    return node;
  };

  const pool = () => {
    const text = find.value.toLowerCase();
    return all.filter(r => (select.value === "all" || r.at === Number(select.value)) &&
      (!text || r.prompt.toLowerCase().includes(text) || r.tokens.join("").toLowerCase().includes(text)));
  };
  const draw = () => {
    const here = pool(), [, , test] = FILTERS.find(([name]) => name === filter);
    const chosen = here.filter(test);
    if (longest) chosen.sort((a, b) => b.length - a.length);
    chips.replaceChildren(...FILTERS.map(([name, title, member]) => {
      const n = here.filter(member).length, chip = make("button", "chip", `${name} ${n}`);
      if (name === "not scored" && !n) return "";
      chip.type = "button"; chip.title = title; chip.dataset.filter = name;
      chip.setAttribute("aria-pressed", String(name === filter));
      chip.addEventListener("click", () => { filter = name; shown = PAGE; draw(); });
      return chip;
    }));
    const order = make("button", "chip", "longest first");
    order.type = "button"; order.dataset.filter = "longest"; order.setAttribute("aria-pressed", String(longest));
    order.addEventListener("click", () => { longest = !longest; shown = PAGE; draw(); });
    chips.append(order);
    const total = chosen.reduce((n, r) => n + r.by.length, 0);
    for (const share of reader.querySelectorAll("[data-share]")) {
      const n = chosen.reduce((sum, r) => sum + (counts(r)[share.dataset.share] || 0), 0);
      share.textContent = total ? ` ${(100 * n / total).toFixed(n && n < total / 100 ? 1 : 0)} %` : "";
    }
    cards.replaceChildren(...(chosen.length ? chosen.slice(0, shown).map(card) : [make("p", "soft", "No rollout is like this.")]));
    more.hidden = chosen.length <= shown;
    more.textContent = `show more (${chosen.length - shown} left)`;
  };

  const tip = make("div", "tip");
  tip.hidden = true; tip.setAttribute("role", "status");
  reader.append(tip);
  cards.addEventListener("pointerover", event => {
    const token = event.target.closest(".t[data-i]");
    if (!token) { tip.hidden = true; return; }
    const r = token.closest(".response").rollout, i = Number(token.dataset.i), chance = r.logprobs[i];
    tip.replaceChildren(make("div", "", NAMES[r.by[i]]));
    if (r.ids.length) tip.append(make("div", "soft", `token ${i < r.cut ? i + 1 : i + 1 + r.left_out} of ${r.length}, id ${r.ids[i]}`));
    if (typeof chance === "number") tip.append(make("div", "soft", `policy's probability ${(100 * Math.exp(chance)).toPrecision(3)} %`));
    const box = token.getBoundingClientRect(), base = reader.getBoundingClientRect(), right = box.left - base.left > base.width / 2;
    tip.style.left = right ? "" : `${box.left - base.left}px`; tip.style.right = right ? `${base.right - box.right}px` : "";
    tip.style.top = `${box.bottom - base.top + 4}px`; tip.hidden = false;
  });
  cards.addEventListener("pointerleave", () => { tip.hidden = true; });
  select.addEventListener("change", () => { shown = PAGE; draw(); });
  find.addEventListener("input", () => { shown = PAGE; draw(); });
  more.addEventListener("click", () => { shown += PAGE; draw(); });
  for (const go of reader.querySelectorAll("[data-go]")) go.addEventListener("click", () => {
    const options = select.options.length, to = select.selectedIndex + Number(go.dataset.go);
    select.selectedIndex = Math.min(Math.max(to, 0), options - 1); shown = PAGE; draw();
  });
  select.selectedIndex = select.options.length - 1;
  draw();
}
}
