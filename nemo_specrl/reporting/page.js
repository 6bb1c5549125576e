"use strict";
// Theme: the system's, until the button says otherwise.
const root = document.documentElement, theme = document.getElementById("theme");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const named = () => { theme.textContent = dark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; named(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
named();

const short = v => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : Number(v.toPrecision(4)).toString();
const hidden = (figure, name) => figure.querySelector(`[data-toggle="${CSS.escape(name)}"]`)?.getAttribute("aria-pressed") === "false";

for (const figure of document.querySelectorAll("figure")) {
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
  figure.append(tip);
  const place = event => {
    const box = figure.getBoundingClientRect(), x = event.clientX - box.left, right = x > box.width / 2;
    tip.style.left = right ? "" : `${x + 14}px`; tip.style.right = right ? `${box.width - x + 14}px` : "";
    tip.style.top = `${event.clientY - box.top + 12}px`;
  };

  // Legend: a click hides a series in every chart of the figure.
  for (const key of figure.querySelectorAll("[data-toggle]")) key.addEventListener("click", () => {
    const on = key.getAttribute("aria-pressed") === "false";
    key.setAttribute("aria-pressed", String(on));
    for (const shape of figure.querySelectorAll("[data-series]"))
      if (shape.dataset.series === key.dataset.toggle) shape.classList.toggle("off", !on);
  });

  // Tabs: the same metric by step, by time, by tokens.
  for (const tab of figure.querySelectorAll("[data-tab]")) tab.addEventListener("click", () => {
    for (const other of figure.querySelectorAll("[data-tab]")) other.setAttribute("aria-selected", String(other === tab));
    for (const panel of figure.querySelectorAll("[data-panel]")) panel.hidden = panel.dataset.panel !== tab.dataset.tab;
  });

  // Hover: each visible series' value nearest to the pointer's x. Arrow keys move the cursor too.
  for (const svg of figure.querySelectorAll("svg[data-chart]")) {
    const chart = JSON.parse(svg.dataset.chart), cursor = svg.querySelector(".cursor");
    const [low, high] = chart.x, [left, right] = chart.box;
    let at = null;
    const show = x => {
      at = Math.min(Math.max(x, low), high);
      tip.replaceChildren();
      const head = document.createElement("span"); let shown = null;
      tip.append(head);
      for (const series of chart.series) {
        if (!series.x.length || hidden(figure, series.name)) continue;
        let best = 0;
        for (let i = 1; i < series.x.length; i++) if (Math.abs(series.x[i] - at) < Math.abs(series.x[best] - at)) best = i;
        shown ??= series.x[best];
        const row = document.createElement("div"), swatch = document.createElement("span"), value = document.createElement("b");
        swatch.className = `swatch s${series.colour}`;
        value.textContent = short(series.y[best]) + (series.low[best] === null ? "" : `  [${short(series.low[best])}, ${short(series.high[best])}]`);
        row.append(swatch, series.name, value); tip.append(row);
      }
      if (shown === null) return hide();
      head.textContent = `${chart.label} ${short(shown)}`;
      const pixel = left + (shown - low) / (high - low || 1) * (right - left);
      cursor.setAttribute("x1", pixel); cursor.setAttribute("x2", pixel); cursor.setAttribute("visibility", "visible");
      tip.hidden = false;
    };
    const hide = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      show(low + (x - left) / (right - left) * (high - low)); place(event);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", event => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way) return;
      event.preventDefault(); show((at ?? (low + high) / 2) + way * (high - low) / 50);
      const box = svg.getBoundingClientRect();
      place({ clientX: box.left + (left + (at - low) / (high - low) * (right - left)) / svg.viewBox.baseVal.width * box.width, clientY: box.top + 20 });
    });
  }
  for (const shape of figure.querySelectorAll("[data-tip]")) {
    shape.addEventListener("pointermove", event => { tip.textContent = shape.dataset.tip; tip.hidden = false; place(event); });
    shape.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
}
