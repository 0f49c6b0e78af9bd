"use strict";
// Tables that sort, and a chart of runs. Text from files reaches the page as text alone, never as markup.
const STYLES = [["#0072B2", ""], ["#D55E00", "8 4"], ["#009E73", "8 3 2 3"], ["#CC79A7", "3 2"], ["#E69F00", "12 3"],
  ["#56B4E9", "6 2 2 2"], ["#000000", "14 5"], ["#8A8A00", "2 2"]];

function sortable(table) {
  table.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const text = (row) => row.cells[column].textContent;
      const numbers = rows.every((row) => text(row) === "-" || text(row) === "infinite" || !isNaN(parseFloat(text(row))));
      const number = (row) => (text(row) === "infinite" ? Infinity : text(row) === "-" ? -Infinity : parseFloat(text(row)));
      const before = (a, b) => (number(a) === number(b) ? 0 : number(a) < number(b) ? -1 : 1);
      rows.sort((a, b) => (numbers ? before(a, b) : text(a).localeCompare(text(b))) * (falling ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
}
document.querySelectorAll("table.sortable").forEach(sortable);

function drawn(tag, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

const chart = document.getElementById("chart");
let runs = JSON.parse(document.getElementById("data").textContent);
const name = (run) => Object.entries(run.settings).map(([key, value]) => `${key}=${value}`).join(", ");
const method = (run) => JSON.stringify({...run.settings, seed: "", epsilon: run.settings.epsilon});
const different = runs.filter((run, at) => runs.findIndex((other) => method(other) === method(run)) === at);
const chosen = new Set(different.slice(0, 4).map((run) => run.folder));
const picture = document.createElement("div"), list = document.createElement("ul"), told = document.createElement("output");

function state(run) {
  const last = run.points.length ? run.points[run.points.length - 1][0] : 0;
  return run.ended === null ? `no report yet; round ${last} of ${run.rounds}` : run.ended;
}

function tell(run, [round, score, epsilon]) {
  const value = score === null ? "diverged" : run.percent ? `${(100 * score).toFixed(2)} %` : score.toPrecision(4);
  const spent = run.budget === null ? "no noise" : epsilon === null ? "unknown" : epsilon.toPrecision(4);
  told.textContent = `${name(run)}\nround ${round}, test ${run.measure} ${value}\n`
    + `epsilon spent by then: ${spent}${run.budget === null ? "" : ` of ${run.budget}`}\n${run.folder}`;
}

function steps(low, high, number) {
  const rough = (high - low) / number || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(+at.toPrecision(12));
  return found;
}

function draw() {
  const shown = runs.filter((run) => chosen.has(run.folder)).slice(0, STYLES.length);
  const first = shown[0], alike = shown.filter((run) => run.measure === first.measure);
  const svg = drawn("svg", {viewBox: "0 0 640 380", role: "img", "aria-label": "Scores by round"});
  picture.replaceChildren(svg);
  if (!first) return svg.append(drawn("text", {x: 20, y: 30, "font-size": 14}, "Choose a run."));
  const scale = first.percent ? 100 : 1;
  const known = alike.flatMap((run) => run.points.filter((point) => point[1] !== null).map((point) => scale * point[1]));
  let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  const pad = 0.06 * (high - low) || 1;
  [low, high] = [Math.max(0, low - pad), first.percent ? Math.min(100, high + pad) : high + pad];
  if (low < 0.25 * (high - low)) low = 0;
  const end = Math.max(1, ...alike.map((run) => run.rounds));
  const x = (round) => 60 + 560 * round / end, y = (score) => 330 - 310 * (score - low) / (high - low);
  for (const at of steps(0, end, 8)) {
    svg.append(drawn("line", {x1: x(at), x2: x(at), y1: 20, y2: 330, stroke: "#ddd"}));
    svg.append(drawn("text", {x: x(at), y: 348, "text-anchor": "middle", "font-size": 12}, at));
  }
  for (const at of steps(low, high, 6)) {
    svg.append(drawn("line", {x1: 60, x2: 620, y1: y(at), y2: y(at), stroke: "#ddd"}));
    svg.append(drawn("text", {x: 54, y: y(at) + 4, "text-anchor": "end", "font-size": 12}, at));
  }
  svg.append(drawn("rect", {x: 60, y: 20, width: 560, height: 310, fill: "none", stroke: "#333"}));
  svg.append(drawn("text", {x: 340, y: 372, "text-anchor": "middle", "font-size": 13}, "round"));
  const label = `test ${first.measure}${first.percent ? " (%)" : ""}${low ? "; the axis does not start at 0" : ""}`;
  svg.append(drawn("text", {x: -175, y: 14, transform: "rotate(-90)", "text-anchor": "middle", "font-size": 13}, label));
  alike.forEach((run) => {
    const [color, dashes] = STYLES[shown.indexOf(run)];
    const points = run.points.filter((point) => point[1] !== null);
    const line = points.map((point) => `${x(point[0])},${y(scale * point[1])}`).join(" ");
    svg.append(drawn("polyline", {points: line, fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dashes}));
    for (const point of points) {
      const mark = drawn("circle", {cx: x(point[0]), cy: y(scale * point[1]), r: 4, fill: color, class: "mark", tabindex: 0});
      mark.append(drawn("title", {}, name(run)));
      for (const event of ["mouseenter", "focus", "click"]) mark.addEventListener(event, () => tell(run, point));
      svg.append(mark);
    }
  });
}

function offer() {
  const focused = document.activeElement && document.activeElement.value;
  list.replaceChildren(...runs.map((run) => {
    const item = document.createElement("li"), label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.value = run.folder;
    box.checked = chosen.has(run.folder);
    box.addEventListener("change", () => {
      if (box.checked && chosen.size === STYLES.length) box.checked = false;
      else if (box.checked) chosen.add(run.folder);
      else chosen.delete(run.folder);
      update();
    });
    const at = runs.filter((one) => chosen.has(one.folder)).indexOf(run);
    const sample = drawn("svg", {viewBox: "0 0 28 8", style: "width:28px;height:8px"});
    if (at >= 0) {
      const [color, dashes] = STYLES[at % STYLES.length];
      sample.append(drawn("line", {x1: 0, x2: 28, y1: 4, y2: 4, stroke: color, "stroke-width": 3, "stroke-dasharray": dashes}));
    }
    const words = document.createElement("span");
    words.textContent = run.ended === "all rounds" ? name(run) : `${name(run)} (${state(run)})`;
    label.append(box, sample, words);
    if (run.ended === null) item.className = "going";
    item.append(label);
    return item;
  }));
  if (focused) [...list.querySelectorAll("input")].find((box) => box.value === focused)?.focus();
}

function update() {
  offer();
  draw();
}

if (chart) {
  const side = document.createElement("div");
  side.append(list, told);
  chart.append(picture, side);
  update();
  if (chart.dataset.live === "yes") {
    const line = document.getElementById("state"), ended = (all) => all.filter((run) => run.ended !== null).length;
    const before = ended(runs);
    const source = new EventSource("events");
    source.addEventListener("message", (event) => {
      const known = new Set(runs.map((run) => run.folder));
      runs = JSON.parse(event.data);
      for (const run of runs) if (!known.has(run.folder) && chosen.size < STYLES.length) chosen.add(run.folder);
      line.textContent = `Live. ${runs.filter((run) => run.ended === null).length} without a report.`
        + (ended(runs) === before ? "" : " More runs have ended since this page was opened: reload it for their tables and pictures.");
      update();
    });
    source.addEventListener("error", () => { line.textContent = "The server does not answer; the chart is as of the last answer."; });
  }
}
