"use strict";
// Filters the overview and draws the series of a case. Whatever comes from the data enters the page as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const element = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const percent = (value) => `${value > 0 ? "+" : ""}${Number(value.toPrecision(3))} %`;
  const day = (second) => new Date(second * 1000).toISOString().slice(0, 16).replace("T", " ");

  // ---- the overview

  const rows = $$(".history tbody tr").map((row) => [row, row.textContent.toLowerCase()]);
  function filter() {
    const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word)) || ($("#changed").checked && !row.dataset.changed);
      shown += !row.hidden;
    }
    $("#shown").textContent = shown === rows.length ? `${shown} series` : `${shown} of ${rows.length} series`;
  }
  if ($("#filter")) {
    $("#filter").addEventListener("input", filter);
    $("#changed").addEventListener("change", filter);
    filter();
  }

  // ---- the page of a case

  // Every night of the device is a place: x is its number, so that gaps are as wide as the nights that they lack.
  function links(nights, night) {
    const parts = [element("code", nights.sha[night].slice(0, 10))];
    if (nights.place[night] >= 0) {
      const commits = nights.commits[nights.place[night]];
      const commit = element("a", "", { href: `${commits}/${nights.sha[night]}`, rel: "noreferrer" });
      commit.append(parts.pop());
      const run = `${commits.replace(/\/commit$/, "")}/actions/runs/${nights.run[night]}`;
      parts.push(commit, " · ", element("a", "run", { href: run, rel: "noreferrer" }));
    }
    return parts;
  }

  function draw(figure) {
    const series = data.series[Number(figure.dataset.series)];
    const nights = data.nights[series.device];
    const all = (values) => {
      const found = new Array(nights.at.length).fill(null);
      series.night.forEach((night, i) => (found[night] = values[i]));
      return found;
    };
    const [ratio, low, high] = [all(series.ratio), all(series.low), all(series.high)];
    // A line does not cross an epoch: its seam lies before its first night.
    const seams = nights.seams.map(([night]) => night);
    const gap = (u, index, i0, i1, gaps) => {
      const cut = seams.map((night) => u.valToPos(night - 0.5, "x", true));
      return [...gaps, ...cut.map((x) => [Math.round(x) - 1, Math.round(x) + 1])].sort((a, b) => a[0] - b[0]);
    };
    const readout = $(".readout", figure);
    const slider = $("input[type=range]", figure);
    const say = (night) => {
      const value = ratio[night] == null ? "no answer" : `${percent(ratio[night])} (${percent(low[night])} to ${percent(high[night])})`;
      readout.replaceChildren(`${day(nights.at[night])} · ${value} · `, ...links(nights, night), ` ${nights.title[night]}`);
    };
    const lines = (u) => {
      const context = u.ctx;
      const { left, top, width, height } = u.bbox;
      context.save();
      context.beginPath();
      context.rect(left, top, width, height);
      context.clip();
      context.fillStyle = colour("head");
      context.globalAlpha = 0.2;
      for (const [good, bad] of series.changes) {
        const [from, to] = [u.valToPos(good, "x", true), u.valToPos(bad, "x", true)];
        context.fillRect(from, top, Math.max(2, to - from), height);
      }
      context.globalAlpha = 1;
      context.strokeStyle = colour("soft");
      context.setLineDash([6, 6]);
      const stroke = (x0, y0, x1, y1) => {
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.stroke();
      };
      context.fillStyle = colour("soft");
      context.font = `${12 * devicePixelRatio}px sans-serif`;
      for (const [night, reference] of nights.seams) {
        const x = u.valToPos(night - 0.5, "x", true);
        stroke(x, top, x, top + height);
        const right = x > left + 0.8 * width;
        context.textAlign = right ? "right" : "left";
        context.fillText(reference, x + (right ? -4 : 4) * devicePixelRatio, top + 14 * devicePixelRatio);
      }
      if (series.limit != null) {
        context.strokeStyle = colour("limit");
        const y = u.valToPos(series.limit, "y", true);
        stroke(left, y, left + width, y);
      }
      context.restore();
    };
    const plot = $(".plot", figure);
    const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") } };
    const band = colour("base");
    const made = new uPlot(
      {
        width: plot.clientWidth,
        height: 300,
        legend: { show: false },
        cursor: { drag: { x: true, y: false } },
        scales: { x: { time: false } },
        axes: [
          { ...axis, space: 90, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], values: (u, ticks) => ticks.map((at) => (nights.at[at] ? day(nights.at[at]).slice(0, 10) : "")) },
          { ...axis, size: 64, values: (u, ticks) => ticks.map(percent) },
        ],
        series: [
          {},
          { stroke: "transparent", points: { show: false }, gaps: gap },
          { stroke: "transparent", points: { show: false }, gaps: gap },
          { stroke: band, width: 1.5, gaps: gap, points: { size: 4, fill: band, stroke: band } },
        ],
        bands: [{ series: [1, 2], fill: `color-mix(in srgb, ${band} 22%, transparent)` }],
        hooks: {
          drawAxes: [lines],
          setCursor: [(u) => { if (u.cursor.idx != null && u.cursor.event) say(Number((slider.value = u.cursor.idx))); }],
        },
      },
      [nights.at.map((_, i) => i), high, low, ratio],
      plot,
    );
    made.over.addEventListener("click", () => { if (made.cursor.idx != null) say(Number((slider.value = made.cursor.idx))); });
    slider.max = nights.at.length - 1;
    slider.value = series.night.length ? series.night[series.night.length - 1] : slider.max;
    const moved = () => {
      const night = Number(slider.value);
      slider.setAttribute("aria-valuetext", `${day(nights.at[night])}, ${ratio[night] == null ? "no answer" : percent(ratio[night])}`);
      say(night);
      made.setCursor({ left: made.valToPos(night, "x"), top: ratio[night] == null ? 0 : made.valToPos(ratio[night], "y") }, false);
    };
    slider.oninput = moved;
    moved();
    const table = $(".values", figure);
    table.ontoggle = () => {
      if (!table.open || $("table", table)) return;
      const made = element("table");
      const head = made.createTHead().insertRow();
      for (const name of ["night", "change", "interval", "commit", "title"]) head.append(element("th", name, { scope: "col" }));
      const body = made.createTBody();
      for (let night = nights.at.length - 1; night >= 0; night--) {
        const row = body.insertRow();
        const none = ratio[night] == null;
        row.append(element("th", day(nights.at[night]), { scope: "row" }));
        row.insertCell().textContent = none ? "no answer" : percent(ratio[night]);
        row.insertCell().textContent = none ? "–" : `${percent(low[night])} to ${percent(high[night])}`;
        row.insertCell().append(...links(nights, night));
        row.insertCell().textContent = nights.title[night];
      }
      $(".scroll", table).append(made);
    };
    return made;
  }

  const figures = $$("figure.series");
  let drawn = figures.map(draw);
  const again = () => {
    drawn.forEach((one) => one.destroy());
    drawn = figures.map(draw);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    drawn.forEach((one, i) => one.setSize({ width: $(".plot", figures[i]).clientWidth, height: 300 }));
  });
})();
