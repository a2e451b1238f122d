// A query and a key that can be moved, together and apart (see live/positions.py): their score.
document.addEventListener("DOMContentLoaded", () => live.wake("positions", (root, data) => {
  const { element, dot } = live;
  const [query, key] = [live.unpacked(data.query), live.unpacked(data.key)];
  const width = query.length;
  const scale = Math.sqrt(width);
  const WAYS = ["sinusoids added", "rotated (rotary)", "linear bias"];
  const PARTS = ["what, what", "what, where", "where, what", "where, where"];

  const angle = (place, pair) => place * 10000 ** ((-2 * pair) / width);

  const clocks = (place) => Array.from({ length: width }, (_, n) =>
    (n % 2 ? Math.cos : Math.sin)(angle(place, (n - (n % 2)) / 2)));

  function turned(vector, place) {
    return vector.map((x, n) => {
      const a = angle(place, (n - (n % 2)) / 2);
      return n % 2 // the pair is (x cos − y sin, x sin + y cos)
        ? vector[n - 1] * Math.sin(a) + x * Math.cos(a)
        : x * Math.cos(a) - vector[n + 1] * Math.sin(a);
    });
  }

  function scoresAt(i, j) {
    const [p, r] = [clocks(i), clocks(j)];
    const parts = [dot(query, key), dot(query, r), dot(p, key), dot(p, r)].map((x) => x / scale);
    const added = parts.reduce((sum, part) => sum + part, 0);
    const rotary = dot(turned(query, i), turned(key, j)) / scale;
    return [...parts, added, rotary, parts[0] - data.slope * Math.abs(i - j)];
  }

  const number = (score) => score.toFixed(2).replace("-0.00", "0.00").replace("-", "−");

  const place = (text, name, value) => live.slider(text, name, { min: 0, max: 63, value });
  const ofQuery = place("Position of the query:", "query", data.places[0]);
  const ofKey = place("Position of the key:", "key", data.places[1]);
  const shift = live.slider("Shifted by", "shift",
    { min: 0, max: data.furthest, value: data.shift });
  const says = root.querySelector(".live-says");
  const rows = [...root.querySelector("tbody").rows];

  // Two small charts: a line for each way, over the shift, and a mark at the chosen one.
  const [WIDE, HIGH] = [320, 120];
  const draw = (tag, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const charts = ["Both moved on", "The query alone moved on"].map((title) => {
    const lines = WAYS.map((_, way) => draw("polyline", { class: `positions-line-${way}` }));
    const mark = draw("line", { class: "positions-mark", y1: 0, y2: HIGH });
    const zero = draw("line", { class: "positions-zero", x2: WIDE });
    const [top, bottom] = [0, HIGH].map((y) => draw("text", { x: -4, y }));
    const svg = draw("svg", { viewBox: `-42 -8 ${WIDE + 46} ${HIGH + 16}`, "aria-hidden": "true" },
      zero, mark, ...lines, top, bottom);
    const made = element("div", { className: "positions-chart" },
      element("p", { className: "live-title", textContent: title }), svg);
    return { made, lines, mark, zero, top, bottom };
  });
  const keys = element("p", { className: "positions-keys" }, ...WAYS.map((way, index) => {
    const sample = draw("svg", { viewBox: "0 0 28 6", "aria-hidden": "true" },
      draw("polyline", { class: `positions-line-${index}`, points: "0,3 28,3" }));
    return element("span", {}, sample, ` ${way}`);
  }));
  says.before(live.settings(show, ofQuery, ofKey, shift));
  says.after(element("div", { className: "live-side" }, ...charts.map(({ made }) => made)), keys);
  root.append(element("p", { className: "live-note", textContent:
    "Scores are divided by √d_head. Charts: the score over the shift, from 0 to " +
    `${data.furthest}; the level grey line is 0, the upright one the chosen shift.` }));

  function show() {
    const [i, j, by] = [ofQuery.value, ofKey.value, shift.value];
    const curves = [(s) => scoresAt(i + s, j + s), (s) => scoresAt(i + s, j)]
      .map((at) => Array.from({ length: data.furthest + 1 }, (_, s) => at(s)));
    const states = [scoresAt(i, j), curves[0][by], curves[1][by]];

    charts.forEach(({ lines, mark, zero, top, bottom }, chart) => {
      const drawn = curves[chart].flatMap((scores) => scores.slice(PARTS.length));
      const [low, high] = [Math.min(0, ...drawn), Math.max(0, ...drawn)];
      const x = (s) => (WIDE * s) / data.furthest;
      const y = (score) => HIGH * (1 - (score - low) / (high - low));
      lines.forEach((line, way) => line.setAttribute("points", curves[chart]
        .map((scores, s) => `${x(s).toFixed(1)},${y(scores[PARTS.length + way]).toFixed(1)}`)
        .join(" ")));
      for (const end of ["x1", "x2"]) mark.setAttribute(end, x(by));
      for (const end of ["y1", "y2"]) zero.setAttribute(end, y(0));
      [top.textContent, bottom.textContent] = [number(high), number(low)];
    });

    rows.forEach((line, part) => states.forEach((scores, column) => {
      const cell = line.cells[column + 1];
      cell.textContent = number(scores[part]);
      cell.dataset.score = scores[part];
      cell.classList.toggle("positions-other",
        column > 0 && number(scores[part]) !== number(states[0][part]));
    }));

    const [start, both, one] = states.map((scores) => scores.slice(PARTS.length).map(number));
    const kept = WAYS.map((way, index) =>
      `${way} ${start[index]}${start[index] === both[index] ? " stays" : ` becomes ${both[index]}`}`);
    const apart = WAYS.map((way, index) => `${way} ${one[index]}`);
    live.say(says, `Query at ${i}, key at ${j}. Both shifted by ${by}: ${kept.join(", ")}. ` +
      `The query alone moved on, to a distance of ${Math.abs(i + by - j)}: ${apart.join(", ")}.`);
  }

  show();
}));
