"use strict";
// Sorts, filters, opens cases and draws plots. Whatever comes from the data enters the page as text, never as HTML.
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
  const number = (value, digits = 5) => (value == null ? "–" : String(Number(value.toPrecision(digits))));
  const percent = (value) => (value == null ? "–" : `${value > 0 ? "+" : ""}${number(value, 3)} %`);
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  const present = (values) => values.filter((value) => value != null);

  // ---- the table of cases

  const body = $("#cases .rows tbody");
  const worstFirst = body ? [...body.rows] : [];
  const numeric = new Set(["class", "base", "head", "change", "limit"]);

  function sortBy(name, direction) {
    const keys = new Map(worstFirst.map((row) => [row, row.querySelector(`td.${name}`)?.dataset.key ?? ""]));
    const compare = (a, b) => {
      const [left, right] = [keys.get(a), keys.get(b)];
      if (left === "" || right === "") return (left === "") - (right === ""); // what has no value comes last
      const order = numeric.has(name) ? left - right : left.localeCompare(right, "en", { numeric: true });
      return direction * order;
    };
    body.append(...(name ? [...worstFirst].sort(compare) : worstFirst));
    for (const head of $$("#cases thead th")) {
      const sorted = name && head.classList.contains(name);
      head.setAttribute("aria-sort", sorted ? (direction > 0 ? "ascending" : "descending") : "none");
    }
    $("#sort").value = [...$("#sort").options].some((option) => option.value === name) ? name : "";
  }

  function filter() {
    const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const classes = new Set($$(".chip[aria-pressed=true]").map((chip) => chip.dataset.filter));
    let shown = 0;
    for (const row of worstFirst) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(words.every((word) => text.includes(word)) && (!classes.size || classes.has(row.dataset.class)));
      shown += !row.hidden;
    }
    const over = $("#shown").dataset.over;
    $("#shown").textContent = shown === worstFirst.length ? `${shown} rows${over ? `, ${over}` : ""}` : `${shown} of ${worstFirst.length} rows`;
  }

  if (body) {
    for (const button of $$("#cases thead button"))
      button.addEventListener("click", () => {
        const now = button.parentElement.getAttribute("aria-sort");
        // The largest change is asked for first, of all else the smallest.
        const first = button.dataset.sort === "change" ? "descending" : "ascending";
        sortBy(button.dataset.sort, (now === "none" ? first : now === "ascending" ? "descending" : "ascending") === "ascending" ? 1 : -1);
      });
    $("#sort").addEventListener("change", (event) => sortBy(event.target.value, event.target.value === "change" ? -1 : 1));
    $("#filter").addEventListener("input", filter);
    $(".filters").addEventListener("submit", (event) => event.preventDefault());
    for (const chip of $$(".chip"))
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
        filter();
      });
    filter();
  }

  // ---- plots: each is {legend, table, draw}; `draw` gives uPlot's options and data

  const SIDES = ["base", "head"];
  const KINDS = 7; // colours of a timeline
  const SHAPES = { base: "circle", head: "diamond" };
  const HEIGHT = 300;

  function mark(path, shape, x, y, size) {
    if (shape === "diamond") {
      path.moveTo(x, y - size * 1.25);
      path.lineTo(x + size * 1.25, y);
      path.lineTo(x, y + size * 1.25);
      path.lineTo(x - size * 1.25, y);
      path.closePath();
    } else {
      path.moveTo(x + size, y);
      path.arc(x, y, size, 0, 2 * Math.PI);
    }
  }

  /** A series of marks; `hollow` ones are outlines. */
  function marks(name, shape, { size = 3.5, hollow = false, scale = "y" } = {}) {
    return {
      scale, stroke: colour(name), fill: hollow ? undefined : colour(name), width: hollow ? 1.6 : 1, points: { show: false },
      paths: (u, index, from, to) => {
        const path = new Path2D();
        for (let i = from; i <= to; i++) {
          const value = u.data[index][i];
          if (value != null) mark(path, shape, u.valToPos(u.data[0][i], "x", true), u.valToPos(value, scale, true), size * devicePixelRatio);
        }
        return { stroke: path, fill: hollow ? null : path };
      },
    };
  }

  function line(name, { dash, width = 1.5, scale = "y" } = {}) {
    return {
      scale, stroke: colour(name), width, dash, spanGaps: true, points: { show: false },
    };
  }

  function axes(x, y) {
    const common = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 22 };
    return [
      { ...common, label: x.label, size: 32, ...x.axis },
      ...y.map((one, index) => ({ ...common, label: one.label, scale: one.scale ?? "y", side: index ? 1 : 3, size: 62, ...(index ? { grid: { show: false } } : {}), values: (_, splits) => splits.map((value) => (value == null ? "" : number(value, digits(splits)))), ...one.axis })),
    ];
  }

  /** Significant digits that tell an axis's numbers apart, 4 at least. */
  function digits(splits) {
    const [first, second] = present(splits);
    const largest = Math.max(...present(splits).map(Math.abs));
    const needed = Math.ceil(Math.log10(largest / Math.abs(second - first))) + 1;
    return Number.isFinite(needed) ? Math.min(12, Math.max(4, needed)) : 4;
  }

  /** The least and the largest of these values with a margin. */
  function around(values, margin = 0.06) {
    const known = present(values);
    if (!known.length) return [0, 1];
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const room = (high - low || Math.abs(high) * 0.01 || 1) * margin;
    return [low - room, high + room];
  }

  /** Whether this is a power of ten. */
  const decade = (value) => Math.abs(Math.log10(Math.abs(value)) - Math.round(Math.log10(Math.abs(value)))) < 1e-6;

  const whole = { incrs: [1, 2, 5, 10, 20, 50] };

  function workers(plot) {
    const sides = SIDES.filter((side) => plot.values[side]?.some((value) => value != null));
    const offset = (side) => (sides.length < 2 ? 0 : side === "base" ? -0.2 : 0.2);
    const at = new Map();
    const place = (x, series, value) => at.set(x, { ...(at.get(x) ?? {}), [series]: value });
    const boxes = { base: new Map(), head: new Map() };
    for (const side of sides) {
      plot.values[side].forEach((value, index) => place(plot.pairs[index] + offset(side), side, value));
      (plot.samples?.[side] ?? []).forEach((placements, index) =>
        placements.forEach((ranks, number) => {
          const spread = placements.length > 1 ? (number / (placements.length - 1) - 0.5) * 0.3 : 0;
          boxes[side].set(plot.pairs[index] + offset(side) + spread, ranks);
        }));
    }
    const xs = [...at.keys()].sort((a, b) => a - b);
    // Both sides on one axis, or a change could not be seen; logarithmic where one is a multiple of the other.
    const all = sides.flatMap((side) => present([...plot.values[side], ...[...boxes[side].values()].flat()]));
    const [least, most] = [Math.min(...all), Math.max(...all)];
    const values = sides.flatMap((side) => present(plot.values[side]));
    const logarithmic = least > 0 && Math.max(...values) / Math.min(...values) > 5;
    const round = (_, splits) => splits.map((value) => (value != null && value === Number(value.toPrecision(1)) ? number(value) : ""));
    const range = logarithmic ? [least / 1.3, most * 1.3] : around(all);
    const drawBoxes = (u) => {
      const ratio = devicePixelRatio;
      u.ctx.save();
      u.ctx.beginPath();
      u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
      u.ctx.clip();
      for (const side of sides) {
        u.ctx.strokeStyle = u.ctx.fillStyle = colour(side);
        for (const [x, ranks] of boxes[side]) {
          const left = Math.round(u.valToPos(x, "x", true));
          const y = ranks.map((value) => u.valToPos(value, "y", true));
          const last = y.length - 1;
          u.ctx.globalAlpha = 0.35;
          u.ctx.lineWidth = ratio;
          u.ctx.beginPath();
          u.ctx.moveTo(left, y[0]);
          u.ctx.lineTo(left, y[last]);
          u.ctx.stroke();
          const [top, bottom] = last >= 4 ? [y[3], y[1]] : [y[last >> 1] - ratio, y[last >> 1] + ratio];
          u.ctx.fillRect(left - 1.5 * ratio, top, 3 * ratio, Math.max(bottom - top, ratio));
        }
      }
      u.ctx.restore();
    };
    const unit = plot.unit ? ` ${plot.unit}` : "";
    return {
      legend: [...sides.map((side) => [side, SHAPES[side], `${side}, a worker`]), ...sides.filter((side) => plot.medians[side] != null).map((side) => [side, "dash", `median of ${side}: ${number(plot.medians[side], 4)}${unit}`])],
      table: {
        head: ["pair", "first", ...sides.flatMap((side) => [`${side}${plot.unit ? ` (${plot.unit})` : ""}`, ...(boxes[side].size ? [`${side}, placements: smallest – middle – largest`] : [])])],
        rows: plot.pairs.map((pair, index) => [pair, plot.first[index] ?? "–", ...sides.flatMap((side) => [number(plot.values[side][index], 6), ...(boxes[side].size ? [(plot.samples[side][index] ?? []).map((ranks) => `${number(ranks[0])} – ${number(ranks[ranks.length >> 1])} – ${number(ranks.at(-1))}`).join(", ")] : [])])]),
      },
      read: (u, index) => {
        const side = sides.find((one) => at.get(xs[index])[one] != null);
        return side ? `pair ${Math.round(xs[index] - offset(side))} · ${side} ${number(at.get(xs[index])[side], 6)}${unit}` : "";
      },
      draw: () => ({
        options: {
          scales: { x: { time: false, range: [Math.min(...plot.pairs) - 0.7, Math.max(...plot.pairs) + 0.7] }, y: { range, ...(logarithmic ? { distr: 3 } : {}) } },
          axes: axes({ label: "pair", axis: whole }, [{ label: `${plot.metric}${plot.unit ? ` (${plot.unit}${logarithmic ? ", logarithmic" : ""})` : ""}`, axis: logarithmic ? { values: round } : {} }]),
          series: [{}, ...sides.map((side) => marks(side, SHAPES[side], { size: 3 })), ...sides.map((side) => line(side, { dash: [6, 5], width: 1 }))],
          hooks: { drawAxes: [drawBoxes] },
        },
        data: [xs, ...sides.map((side) => xs.map((x) => at.get(x)[side])), ...sides.map((side) => xs.map(() => plot.medians[side]))],
      }),
    };
  }

  function ratios(plot) {
    const xs = plot.ratios.map((_, index) => index + 1);
    const looks = new Map(plot.looks.map((look) => [look[0], look]));
    const measured = plot.measured.length ? [plot.measured] : [];
    const shownLimit = plot.limit == null ? [] : [plot.limit];
    const range = around([0, ...plot.ratios, ...measured.flat(), ...shownLimit, ...plot.looks.flatMap((look) => look.slice(1))]);
    const drawLooks = (u) => {
      u.ctx.save();
      u.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      u.ctx.textAlign = "center";
      for (const pairs of plot.planned.filter((one) => one <= xs.length)) {
        const x = Math.round(u.valToPos(pairs, "x", true));
        const decisive = pairs === plot.decided;
        u.ctx.strokeStyle = u.ctx.fillStyle = colour(decisive ? "ink" : "soft");
        u.ctx.globalAlpha = decisive ? 1 : 0.55;
        u.ctx.lineWidth = (decisive ? 1.6 : 1) * devicePixelRatio;
        u.ctx.setLineDash(decisive ? [] : [2 * devicePixelRatio, 4 * devicePixelRatio]);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
        u.ctx.globalAlpha = 1;
        u.ctx.fillText(String(pairs), x, u.bbox.top - 5 * devicePixelRatio);
      }
      u.ctx.restore();
    };
    return {
      legend: [
        ["ink", "circle", "a pair"], ...measured.map(() => ["soft", "ring", "a pair as measured"]),
        ...(plot.looks.length ? [["head", "line", "estimate"], ["head", "band", "its interval"]] : []),
        ...shownLimit.map((limit) => ["limit", "dash", `limit ${percent(limit)}`]),
        ...(plot.planned.length ? [["soft", "look", "a look at the data"]] : []),
        ...(plot.decided ? [["ink", "bar", `decided at ${plot.decided}`]] : []),
      ],
      table: {
        head: ["pair", "change", ...measured.map(() => "as measured"), "estimate at this look", "interval"],
        rows: xs.map((x, index) => [x, percent(plot.ratios[index]), ...measured.map((one) => percent(one[index])), looks.has(x) ? percent(looks.get(x)[1]) : "", looks.has(x) ? `${percent(looks.get(x)[2])} … ${percent(looks.get(x)[3])}` : ""]),
      },
      read: (u, index) => `pair ${xs[index]} · ${percent(plot.ratios[index])}${measured.length ? ` (${percent(plot.measured[index])} as measured)` : ""}`,
      draw: () => ({
        options: {
          padding: [18, 18, 0, 0],
          scales: { x: { time: false, range: [0.3, xs.length + 0.9] }, y: { range } },
          axes: axes({ label: "pair", axis: whole }, [{ label: `change of ${plot.metric} (%)` }]),
          series: [
            {},
            line("soft", { width: 1 }),
            line("limit", { dash: [8, 5] }),
            line("head", { width: 1 }),
            line("head", { width: 1 }),
            { ...line("head", { width: 2 }), points: { show: true, size: 7, fill: colour("head") } },
            ...measured.map(() => marks("soft", "circle", { size: 2.5, hollow: true })),
            marks("ink", "circle", { size: 3 }),
          ],
          bands: [{ series: [4, 3], fill: `${colour("head")}33` }],
          hooks: { drawAxes: [drawLooks] },
        },
        data: [xs, xs.map(() => 0), xs.map(() => plot.limit), ...[2, 3, 1].map((at) => xs.map((x) => looks.get(x)?.[at] ?? null)), ...measured, plot.ratios],
      }),
    };
  }

  function clock(plot) {
    const timed = plot.seconds.length > 0;
    const moments = timed ? data.moments : [];
    const long = timed && Math.max(...plot.seconds, ...moments.map((one) => one[0])) > 180;
    const when = (seconds) => (long ? seconds / 60 : seconds);
    const sides = SIDES.filter((side) => plot.clocks[side]?.some((value) => value != null));
    const pairs = [(timed ? plot.seconds.map(when) : plot.pairs), ...sides.map((side) => plot.clocks[side])];
    const hot = moments.length > 0;
    const joined = hot ? uPlot.join([pairs, [moments.map((one) => when(one[0])), moments.map((one) => one[1])]]) : pairs;
    const label = timed ? `${long ? "minutes" : "seconds"} along the run` : "pair";
    return {
      legend: [...sides.map((side) => [side, SHAPES[side], `${side} (GHz)`]), ...(hot ? [["soft", "line", "temperature (°C)"]] : [])],
      table: {
        head: [label, "pair", ...sides.map((side) => `${side} (GHz)`), ...(hot ? ["temperature (°C)"] : [])],
        rows: joined[0].map((x, index) => {
          const at = timed ? plot.seconds.findIndex((one) => when(one) === x) : index;
          return [number(x, 4), at < 0 ? "" : plot.pairs[at], ...joined.slice(1).map((one) => (one[index] == null ? "" : number(one[index], 6)))];
        }),
      },
      read: (u, index) => [`${number(joined[0][index], 4)} ${timed ? (long ? "min" : "s") : ""}`, ...sides.map((side, at) => (joined[at + 1][index] == null ? "" : `${side} ${number(joined[at + 1][index], 5)} GHz`)), hot && joined.at(-1)[index] != null ? `${joined.at(-1)[index]} °C` : ""].filter(Boolean).join(" · "),
      draw: () => ({
        options: {
          scales: { x: { time: false, range: around(joined[0], 0.03) }, y: { range: around(sides.flatMap((side) => plot.clocks[side]), 0.15) }, ...(hot ? { t: { range: around(moments.map((one) => one[1]), 0.15) } } : {}) },
          axes: axes({ label }, [{ label: "SM clock (GHz)" }, ...(hot ? [{ label: "temperature (°C)", scale: "t" }] : [])]),
          series: [{}, ...sides.map((side) => marks(side, SHAPES[side], { size: 3 })), ...(hot ? [line("soft", { scale: "t" })] : [])],
        },
        data: joined,
      }),
    };
  }

  function roof(plot) {
    const sides = SIDES.filter((side) => plot.sides[side]);
    const ridge = plot.compute / plot.memory;
    const points = sides.flatMap((side) => [[side, plot.sides[side].intensity, false], ...(plot.sides[side].measured ? [[side, plot.sides[side].measured, true]] : [])]);
    const down = (value) => 10 ** Math.floor(Math.log10(value));
    const low = down(Math.min(ridge, ...points.map((one) => one[1])) / 2);
    const high = down(Math.max(ridge, ...points.map((one) => one[1])) * 2) * 10;
    const xs = [...new Set([low, ridge, high, ...points.map((one) => one[1])])].sort((a, b) => a - b);
    const ceiling = (x) => Math.min(plot.compute, x * plot.memory);
    const bottom = down(Math.min(ceiling(low), ...sides.map((side) => plot.sides[side].rate)));
    const ticks = (_, splits) => splits.map((value) => (decade(value) ? number(value, 2) : ""));
    const readings = points.map(([side, intensity, counted]) => [`${side}${counted ? ", bytes counted" : ""}`, intensity, plot.sides[side].rate]);
    return {
      legend: [["ink", "line", `${number(plot.memory, 3)} TB/s, ${number(plot.compute, 3)} TFLOP/s of ${plot.dtype}`], ...points.map(([side, , counted]) => [side, counted ? "ring" : SHAPES[side], counted ? `${side}, bytes counted` : side])],
      table: { head: ["side", "FLOP/B", "TFLOP/s", "ceiling there (TFLOP/s)"], rows: readings.map(([name, x, rate]) => [name, number(x, 4), number(rate, 4), number(ceiling(x), 4)]) },
      read: (u, index) => readings.filter((one) => one[1] === xs[index]).map(([name, x, rate]) => `${name}: ${number(x, 3)} FLOP/B, ${number(rate, 3)} TFLOP/s`).join(" · "),
      draw: () => ({
        options: {
          scales: { x: { time: false, distr: 3, range: [low, high] }, y: { distr: 3, range: [bottom, down(plot.compute) * 10] } },
          axes: axes({ label: "FLOP/B", axis: { values: ticks } }, [{ label: "TFLOP/s", axis: { values: ticks } }]),
          series: [{}, line("ink", { width: 2 }), ...points.map(([side, , counted]) => marks(side, SHAPES[side], { size: counted ? 6 : 5, hollow: counted }))],
        },
        data: [xs, xs.map(ceiling), ...points.map(([side, intensity]) => xs.map((x) => (x === intensity ? plot.sides[side].rate : null)))],
      }),
    };
  }

  function timeline(plot) {
    const sides = SIDES.filter((side) => plot.sides[side]);
    const lanes = sides.flatMap((side) => Array.from({ length: plot.streams }, (_, track) => ({ side, track }))).filter(({ side, track }) => plot.sides[side].some((slice) => slice[1] === track));
    const end = Math.max(...sides.flatMap((side) => plot.sides[side].map((slice) => slice[2] + slice[3]))) || 1;
    const place = ({ side, track }) => lanes.length - 1 - lanes.findIndex((lane) => lane.side === side && lane.track === track);
    const hue = (name) => `kind-${name % KINDS}`;
    const slices = sides.flatMap((side) => plot.sides[side].map(([name, track, start, length]) => ({ side, name, start, length, lane: place({ side, track }) })));
    const paint = (u) => {
      const ratio = devicePixelRatio;
      u.ctx.save();
      u.ctx.beginPath();
      u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
      u.ctx.clip();
      u.ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
      u.ctx.textBaseline = "middle";
      u.ctx.textAlign = "left";
      for (const slice of slices) {
        const left = u.valToPos(slice.start, "x", true);
        const right = u.valToPos(slice.start + slice.length, "x", true);
        const top = u.valToPos(slice.lane + 0.36, "y", true);
        const bottom = u.valToPos(slice.lane - 0.36, "y", true);
        u.ctx.fillStyle = colour(hue(slice.name));
        u.ctx.fillRect(left, top, Math.max(right - left - 0.5 * ratio, ratio), bottom - top);
        // Its number in the legend, and its name where there is room: colours come again, and not everybody sees them.
        const room = right - left - 6 * ratio;
        const [full, short] = [`${slice.name + 1} ${plot.names[slice.name]}`, String(slice.name + 1)];
        const text = [full, short].find((one) => u.ctx.measureText(one).width <= room);
        if (text == null) continue;
        u.ctx.fillStyle = colour("card");
        u.ctx.fillText(text, left + 3 * ratio, (top + bottom) / 2);
      }
      u.ctx.restore();
    };
    const names = [...new Set(slices.map((slice) => slice.name))];
    const total = (side, name) => plot.sides[side].filter((slice) => slice[0] === name).length;
    const cut = plot.cut.map((side) => `later operations of ${side} are not drawn`);
    const label = (lane) => (lane ? (lanes.filter((one) => one.side === lane.side).length > 1 ? `${lane.side} ${lane.track + 1}` : lane.side) : "");
    return {
      legend: [...names.slice(0, 12).map((name) => [hue(name), "box", `${name + 1} ${plot.names[name]}`]), ...(names.length > 12 ? [["soft", "look", `and ${names.length - 12} more`]] : []), ...cut.map((text) => ["soft", "look", text])],
      table: { head: ["side", "operation", `begins (${plot.unit})`, `takes (${plot.unit})`], rows: slices.map((slice) => [slice.side, plot.names[slice.name], number(slice.start), number(slice.length)]) },
      move: (u) => {
        const [x, y] = [u.posToVal(u.cursor.left, "x"), u.posToVal(u.cursor.top, "y")];
        const near = 2 * end / u.over.clientWidth;
        const hit = slices.find((slice) => Math.abs(y - slice.lane) < 0.4 && x >= slice.start - near && x <= slice.start + slice.length + near);
        return hit ? `${hit.side}: ${plot.names[hit.name]}, ${number(hit.length, 4)} ${plot.unit} at ${number(hit.start, 4)} ${plot.unit}` : "";
      },
      summary: sides.map((side) => `${side}: ${plot.sides[side].length} operations of ${names.filter((name) => total(side, name)).length} kinds`).join("; "),
      draw: () => ({
        height: 90 + 46 * lanes.length,
        options: {
          scales: { x: { time: false, range: [0, end * 1.01] }, y: { range: [-0.6, lanes.length - 0.4] } },
          axes: axes({ label: plot.unit }, [{ label: "", axis: { grid: { show: false }, ticks: { show: false }, splits: () => lanes.map((_, index) => index), values: (_, splits) => splits.map((at) => label(lanes[lanes.length - 1 - at])) } }]),
          series: [{}, { paths: () => null, points: { show: false } }],
          hooks: { draw: [paint] },
        },
        data: [[0, end], [0, 0]],
      }),
    };
  }

  function overview(rows) {
    const order = rows.map((_, index) => index).sort((a, b) => rows[b].change - rows[a].change);
    const sorted = order.map((index) => rows[index]);
    const xs = sorted.map((_, index) => index);
    const values = present([0, ...sorted.flatMap((row) => [row.low, row.high, row.limit])]);
    const linear = Math.max(0.1, ...present(sorted.map((row) => Math.abs(row.limit ?? 0))));
    const ranges = [Math.min(...values) * 1.3 - linear / 4, Math.max(...values) * 1.3 + linear / 4];
    const splits = (u, at, low, high) => {
      // 0, then powers of ten, five times and twice these, as far as their labels stay apart.
      const [found, places] = [[0], [u.valToPos(0, "y")]];
      const first = 10 ** Math.floor(Math.log10(linear));
      const steps = Array.from({ length: 12 }, (_, at) => first * 10 ** at);
      for (const times of [1, 5, 2])
        for (const value of steps.flatMap((step) => [Number((step * times).toPrecision(3)), -Number((step * times).toPrecision(3))])) {
          const place = u.valToPos(value, "y");
          if (value < low || value > high || places.some((other) => Math.abs(other - place) < 22)) continue;
          found.push(value);
          places.push(place);
        }
      return found.sort((a, b) => a - b);
    };
    const effects = { fail: ["fail", "diamond"], undecided: ["warn", "diamond"], warn: ["warn", "circle"], pass: ["pass", "circle"] };
    const drawn = Object.keys(effects).filter((effect) => sorted.some((row) => row.effect === effect));
    // Names stand under their cases as far as there is room for a line of text.
    const room = (u) => u.bbox.width / devicePixelRatio / xs.length >= 15;
    const label = (row) => (row.name.length > 26 ? `${row.name.slice(0, 12)}…${row.name.slice(-13)}` : row.name);
    const longest = Math.max(...sorted.map((row) => label(row).length));
    const named = {
      splits: () => xs, values: (u) => sorted.map((row) => (room(u) ? label(row) : "")), filter: (_, found) => found,
      rotate: () => 40, size: (u) => (room(u) ? 24 + Math.ceil(longest * 4.8) : 6), ticks: { show: false }, grid: { show: false },
    };
    const intervals = (u) => {
      u.ctx.save();
      u.ctx.lineWidth = 2 * devicePixelRatio;
      sorted.forEach((row, index) => {
        const x = Math.round(u.valToPos(index, "x", true));
        u.ctx.strokeStyle = colour(effects[row.effect][0]);
        u.ctx.globalAlpha = 0.55;
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.valToPos(row.low, "y", true));
        u.ctx.lineTo(x, u.valToPos(row.high, "y", true));
        u.ctx.stroke();
        if (row.limit == null) return;
        const [y, half] = [Math.round(u.valToPos(row.limit, "y", true)), Math.max(2, Math.min(9, u.bbox.width / devicePixelRatio / xs.length / 2.2)) * devicePixelRatio];
        u.ctx.strokeStyle = colour("limit");
        u.ctx.globalAlpha = 1;
        u.ctx.beginPath();
        u.ctx.moveTo(x - half, y);
        u.ctx.lineTo(x + half, y);
        u.ctx.stroke();
      });
      u.ctx.restore();
    };
    return {
      legend: [...drawn.map((effect) => [effects[effect][0], effects[effect][1], { fail: "fails", undecided: "undecided", warn: "warning", pass: "passes" }[effect]]), ["limit", "line", "limit"]],
      table: { head: ["case", "result", "change", "interval", "limit"], rows: sorted.map((row) => [row.name, row.class, percent(row.change), `${percent(row.low)} … ${percent(row.high)}`, percent(row.limit)]) },
      read: (u, index) => `${sorted[index].name} · ${percent(sorted[index].change)} (${percent(sorted[index].low)} … ${percent(sorted[index].high)}) · ${sorted[index].class}`,
      click: (index) => { location.hash = `case-${sorted[index].case}`; },
      draw: () => ({
        height: HEIGHT + 4 * longest,
        options: {
          padding: [12, 18, 0, Math.max(0, longest * 4.6 - 70)],
          scales: { x: { time: false, range: [-0.7, xs.length - 0.3] }, y: { distr: 4, asinh: linear, range: ranges } },
          axes: axes({ label: "cases, largest change first", axis: named }, [{ label: "change (%)", axis: { splits, filter: (_, found) => found, values: (_, at) => at.map((value) => (value == null ? "" : percent(value))), size: 74 } }]),
          series: [{}, line("soft", { width: 1 }), ...drawn.map((effect) => marks(effects[effect][0], effects[effect][1], { size: sorted.length > 80 ? 2.5 : 3.5 }))],
          hooks: { drawAxes: [intervals] },
        },
        data: [xs, xs.map(() => 0), ...drawn.map((effect) => sorted.map((row) => (row.effect === effect ? row.change : null)))],
      }),
    };
  }

  const MAKERS = { workers, ratios, clock, roof, timeline };

  // ---- figures

  const SVG = "http://www.w3.org/2000/svg";

  function swatch(name, kind) {
    const drawing = document.createElementNS(SVG, "svg");
    const set = (made, attributes) => {
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    set(drawing, { width: 18, height: 12, viewBox: "0 0 18 12", "aria-hidden": "true" });
    const paint = colour(name);
    const shape = (tag, attributes) => drawing.append(set(document.createElementNS(SVG, tag), attributes));
    if (kind === "circle") shape("circle", { cx: 9, cy: 6, r: 4, fill: paint });
    else if (kind === "ring") shape("circle", { cx: 9, cy: 6, r: 4, fill: "none", stroke: paint, "stroke-width": 1.6 });
    else if (kind === "diamond") shape("path", { d: "M9 1l5 5-5 5-5-5z", fill: paint });
    else if (kind === "box") shape("rect", { x: 2, y: 1, width: 14, height: 10, fill: paint });
    else if (kind === "band") shape("rect", { x: 1, y: 1, width: 16, height: 10, fill: paint, "fill-opacity": 0.3 });
    else if (kind === "look") shape("path", { d: "M9 0V12", stroke: paint, "stroke-width": 1.5, "stroke-dasharray": "2 2" });
    else if (kind === "bar") shape("path", { d: "M9 0V12", stroke: paint, "stroke-width": 2 });
    else shape("path", { d: "M1 6H17", stroke: paint, "stroke-width": 2, ...(kind === "dash" ? { "stroke-dasharray": "5 3" } : {}) });
    return drawing;
  }

  const drawn = new Map(); // figure → what is needed to draw it anew

  function drawFigure(figure, plot) {
    drawn.get(figure)?.chart.destroy();
    const target = $(".plot", figure);
    const readout = $(".readout", figure);
    const { options, data: series, height } = plot.draw();
    const width = () => Math.max(120, target.clientWidth);
    const follow = (u) => {
      if (plot.move) readout.textContent = u.cursor.left >= 0 ? plot.move(u) : "";
      else readout.textContent = u.cursor.idx == null ? "" : plot.read(u, u.cursor.idx);
    };
    const chart = new uPlot(
      {
        width: width(), height: height ?? HEIGHT, legend: { show: false }, padding: [12, 18, 0, 0],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
        ...options,
        hooks: { ...options.hooks, setCursor: [follow] },
      },
      series, target,
    );
    if (plot.click) chart.over.addEventListener("click", () => chart.cursor.idx != null && plot.click(chart.cursor.idx));
    $(".legend", figure).replaceChildren(...plot.legend.map(([name, kind, text]) => {
      const item = element("li");
      item.append(swatch(name, kind), text);
      return item;
    }));
    if (plot.summary) target.setAttribute("aria-label", `${$("h2", figure).textContent}: ${plot.summary}`);
    drawn.set(figure, { plot, chart, width });
  }

  function tabulate(figure, { head, rows }) {
    const table = element("table");
    table.append(element("caption", $("h2", figure).textContent));
    const row = (cells, tag) => {
      const made = element("tr");
      made.append(...cells.map((cell, index) => element(tag || (index ? "td" : "th"), String(cell), tag ? { scope: "col" } : index ? {} : { scope: "row" })));
      return made;
    };
    const [top, bottom] = [element("thead"), element("tbody")];
    top.append(row(head.map(capital), "th"));
    bottom.append(...rows.map((cells) => row(cells)));
    table.append(top, bottom);
    $(".values .scroll", figure).replaceChildren(table);
  }

  function open(figure, plot) {
    drawFigure(figure, plot);
    sizes.observe($(".plot", figure));
    $(".values", figure).addEventListener("toggle", (event) => event.target.open && tabulate(figure, plot.table), { once: true });
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const found = drawn.get(target.closest("figure"));
      if (found && target.clientWidth && found.chart.width !== found.width()) found.chart.setSize({ width: found.width(), height: found.chart.height });
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [figure, { plot }] of drawn) drawFigure(figure, plot);
  });

  // ---- one case at a time

  let place = 0; // where the list of cases was scrolled to
  const title = document.title;

  function show() {
    const [overviewPage, casePage] = [$("#overview"), $("#case")];
    const match = /^#case-(\d+)$/.exec(location.hash);
    const template = match && document.getElementById(`case-${match[1]}`);
    if (!template) {
      for (const figure of $$("figure", casePage)) {
        drawn.get(figure)?.chart.destroy();
        drawn.delete(figure);
      }
      const returning = !casePage.hidden;
      casePage.replaceChildren();
      casePage.hidden = true;
      overviewPage.hidden = false;
      document.title = title;
      if (returning) scrollTo(0, place);
      const first = $("figure[data-plot=overview]");
      if (first && !drawn.has(first)) open(first, overview(data.overview));
      return;
    }
    if (casePage.hidden) place = scrollY;
    for (const figure of $$("figure", casePage)) {
      drawn.get(figure)?.chart.destroy();
      drawn.delete(figure);
    }
    overviewPage.hidden = true;
    casePage.hidden = false;
    casePage.replaceChildren(template.content.cloneNode(true));
    const plots = data.cases[Number(match[1])];
    for (const figure of $$("figure", casePage)) open(figure, MAKERS[figure.dataset.plot](plots[figure.dataset.plot]));
    document.title = `${$("h1", casePage).textContent} · perfci`;
    scrollTo(0, 0);
    casePage.focus({ preventScroll: true });
  }

  addEventListener("hashchange", show);
  show();
})();
