// Masks to switch on and off (see live/masking.py): their `and`, and what it leaves of each row.
document.addEventListener("DOMContentLoaded", () => live.wake("masking", (root, data) => {
  const { element, percent } = live;
  const { names, scores, numReal } = data;
  const length = names.length;
  const all = [...names.keys()];
  const changed = new Set(); // single places that are switched, as query * length + key

  // How the mask is brought in: one row of scores and what of it is allowed give weights.
  const WAYS = {
    zeros: ["before the softmax (ours)", live.maskedSoftmax],
    infinity: ["before it, as −∞ alone",
      (row, may) => live.softmax(row.map((score, key) => (may[key] ? score : -Infinity)))],
    finite: ["before it, as −10⁹",
      (row, may) => live.softmax(row.map((score, key) => (may[key] ? score : -1e9)))],
    after: ["after the softmax",
      (row, may) => live.softmax(row).map((weight, key) => (may[key] ? weight : 0))],
  };

  const causal = live.check("Causal", "causal", true);
  const isWindow = live.check("Sliding window", "window", true);
  const padding = live.check(`Padding (${numReal} of ${length} are real)`, "padding", true);
  const isPrefix = live.check("Prefix", "prefix", false);
  const tokens = (count) => `${count} token${count > 1 ? "s" : ""}`;
  const size = { min: 1, max: length, says: tokens };
  const width = live.slider("Window:", "width", { ...size, value: data.window });
  const given = live.slider("Prefix:", "given", { ...size, value: data.prefix });
  const way = live.choice("The mask acts", "way",
    Object.fromEntries(Object.entries(WAYS).map(([key, [text]]) => [key, text])));
  const query = live.choice("One row, key by key: the query", "query", names);
  query.value = data.query;
  const back = live.button("Single places as they were", () => { changed.clear(); show(); });

  const isMasked = (i, j) => // what the switches allow, all of it
    (!causal.value || j <= i) &&
    (!isWindow.value || (j <= i && j > i - width.value)) &&
    (!padding.value || j < numReal) &&
    (!isPrefix.value || j <= i || j < given.value);
  const isAllowed = (i, j) => isMasked(i, j) !== changed.has(i * length + j);

  function switchPlace(i, j) {
    const place = i * length + j;
    if (!changed.delete(place)) changed.add(place);
    query.value = i;
    show();
  }

  // The map is the table that stands there. Whoever has a mouse or a finger can use its cells;
  // the check boxes below do the same.
  const rows = [...root.querySelector("tbody").rows];
  rows.forEach((line, i) => all.forEach((j) =>
    line.cells[j + 1].addEventListener("click", () => switchPlace(i, j))));

  const legend = element("legend");
  const keys = all.map((j) => {
    const box = element("input", { type: "checkbox", name: `key-${j}` });
    box.addEventListener("change", () => switchPlace(Number(query.value), j));
    const bar = live.bar();
    const number = element("span", { className: "live-number" });
    const label = element("label", {}, box,
      element("span", { className: "masking-key", textContent: names[j] }), bar.bar, number);
    return { box, bar, number, label };
  });
  const row = element("fieldset", { className: "live-rows" }, legend, ...keys.map((k) => k.label));
  const note = element("p", { className: "live-note", textContent:
    "A tick lets the query see the key. The mark on a bar is the weight without any mask." });
  const says = root.querySelector(".live-says");
  says.before(live.settings(show, causal, isWindow, width, padding, isPrefix, given, way));
  root.append(live.settings(show, query, back), row, note);

  function show() {
    const weigh = WAYS[way.value][1];
    const allowed = all.map((i) => all.map((j) => isAllowed(i, j)));
    const weights = all.map((i) => weigh(scores[i], allowed[i]));
    const chosen = Number(query.value);
    width.label.hidden = !isWindow.value;
    given.label.hidden = !isPrefix.value;
    live.enable(back, changed.size > 0);

    rows.forEach((line, i) => {
      line.classList.toggle("masking-chosen", i === chosen);
      all.forEach((j) => {
        const [cell, weight] = [line.cells[j + 1], weights[i][j]];
        cell.classList.toggle("masking-hidden", !allowed[i][j]);
        cell.style.setProperty("--weight", weight || 0);
        cell.dataset.weight = weight;
        cell.textContent = weight === 0 && !allowed[i][j] ? "–" : written(weight);
      });
      line.cells[length + 1].textContent =
        weights[i].reduce((sum, weight) => sum + weight, 0).toFixed(2);
    });

    const plain = live.softmax(scores[chosen]);
    legend.textContent = `${names[chosen]} may look at`;
    keys.forEach(({ box, bar, number }, j) => {
      box.checked = allowed[chosen][j];
      bar.show(weights[chosen][j], plain[j]);
      number.textContent = spoken(weights[chosen][j]);
    });
    live.say(says, `${saidOf(weights[chosen], allowed[chosen], chosen)} ${empties(allowed)}`);
  }

  const written = (weight) => (Number.isNaN(weight) ? "NaN" : percent(weight).slice(0, -2));
  const spoken = (weight) => (Number.isNaN(weight) ? "NaN" : percent(weight));

  function saidOf(weights, allowed, chosen) {
    const seen = all.filter((j) => allowed[j]);
    if (seen.length) {
      const looks = seen.map((j) => `${names[j]} ${percent(weights[j])}`).join(", ");
      const sum = weights.reduce((total, weight) => total + weight, 0);
      const said = `${names[chosen]} may look at ${seen.length} of ${length} keys: ${looks}.`;
      return sum > 1 - 1e-9 ? said : `${said} Together no more than ${percent(sum)}.`;
    }
    const nothing = `${names[chosen]} may look at nothing`;
    if (Number.isNaN(weights[0])) return `${nothing}, and its weights are not a number.`;
    if (weights[0] === 0) return `${nothing}: all its weights are 0.`;
    return `${nothing}, and looks at all ${length} keys alike, the hidden ones.`;
  }

  function empties(allowed) {
    const empty = names.filter((_, i) => !allowed[i].includes(true));
    return empty.length ? `Empty rows: ${empty.join(", ")}.` : "No row is empty.";
  }

  show();
}));
