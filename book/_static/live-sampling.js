// The settings of a sampler (see live/sampling.py): temperature, then top-k, then top-p, and draws.
document.addEventListener("DOMContentLoaded", () => live.wake("sampling", (root, data) => {
  const { element } = live;
  const { names } = data;
  const all = [...names.keys()];
  const places = data.places.map((one) => {
    const logits = live.unpacked(one.logits);
    const order = [...all].sort((a, b) => logits[b] - logits[a]); // of equals the lower id first
    return { ...one, logits, order, own: live.softmax(logits) };
  });
  const KEPT = [1, 2, 3, 5, 10, 20, 40, 100, 200, names.length]; // what top-k can be set to

  // Random numbers from 0 to 1, the same ones after each change (mulberry32).
  function dice() {
    let state = 1;
    return () => {
      state = (state + 0x6d2b79f5) | 0;
      let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
      mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  // What the settings make of the logits of a place; `lost` is what the cuts took away.
  function settled({ logits, order }) {
    const warm = live.softmax(logits.map((logit) => logit / temperature.value));
    const best = order.slice(0, KEPT[topK.value]);
    const total = best.reduce((sum, token) => sum + warm[token], 0);
    const after = names.map(() => 0);
    let before = 0; // what the better tokens add up to, of those that top-k left
    let kept = 0;
    for (const token of best) {
      if (topP.value < 1 && before >= topP.value) break;
      before += warm[token] / total;
      after[token] = warm[token];
      kept += warm[token];
    }
    return { after: after.map((share) => share / kept), lost: 1 - kept };
  }

  const entropy = (shares) =>
    shares.reduce((sum, share) => sum - (share && share * Math.log(share)), 0);

  const where = live.choice("After", "place", places.map((one) => one.name));
  const temperature = live.slider("Temperature", "temperature",
    { min: 0.1, max: 3, step: 0.05, value: 1, says: (tau) => tau.toFixed(2) });
  const topK = live.slider("Top-k", "top-k", { min: 0, max: KEPT.length - 1,
    value: KEPT.length - 1, says: (at) => (at === KEPT.length - 1 ? "all" : String(KEPT[at])) });
  const topP = live.slider("Top-p", "top-p",
    { min: 0.05, max: 1, step: 0.05, value: data.nucleus, says: (p) => p.toFixed(2) });

  const code = root.querySelector(".sampling-text code");
  const says = root.querySelector(".live-says");
  const table = root.querySelector("table");
  table.tHead.rows[0].append(element("th", { scope: "col", textContent: "drawn" }));
  const rows = [...table.tBodies[0].rows].map((line) => {
    const bar = live.bar();
    const number = element("span", { className: "live-number" });
    line.cells[2].replaceChildren(bar.bar, number);
    line.append(element("td"));
    return { line, bar, number, cells: [...line.cells] };
  });
  const numShown = rows.length - 1;
  const drawnLast = element("p", { className: "sampling-drawn" });
  drawnLast.setAttribute("aria-live", "polite");
  const buttons = [1, 100].map((count) => live.button(`Draw ${count}`, () => draw(count)));
  const forget = live.button("Forget draws", () => show());
  root.querySelector(".sampling-text").before(
    live.settings(() => show(), where, temperature, topK, topP));
  says.after(live.settings(() => {}, ...buttons, forget));
  root.append(drawnLast, element("p", { className: "live-note", textContent:
    "The mark on a bar is the model’s own probability. Temperature acts first, then top-k, then " +
    "top-p. The dice are the same after each change." }));

  let [state, random, counts, drawn] = [];

  const share = (value) => (value === 0 ? "cut" : `${(100 * value).toFixed(1)}\u00a0%`);

  function show() {
    const place = places[Number(where.value)];
    state = { place, ...settled(place) };
    [random, counts, drawn] = [dice(), names.map(() => 0), []];
    const lines = place.text.trimEnd().split("\n");
    code.textContent = lines[lines.length - 1].trim();
    const rest = place.order.slice(numShown);
    const of = (shares, tokens) => tokens.reduce((sum, token) => sum + shares[token], 0);
    rows.forEach(({ line, bar, number, cells }, at) => {
      const tokens = at < numShown ? [place.order[at]] : rest;
      const [own, after] = [of(place.own, tokens), of(state.after, tokens)];
      if (at < numShown) cells[0].firstChild.textContent = names[tokens[0]];
      cells[1].textContent = share(own);
      number.textContent = share(after);
      bar.show(after, own);
      line.classList.toggle("sampling-cut", after === 0);
      line.dataset.share = after;
    });
    const kept = state.after.filter((p) => p > 0).length;
    const [mine, own] = [entropy(state.after), entropy(place.own)];
    const count = (number) => number.toLocaleString("en");
    const k = topK.value === KEPT.length - 1 ? "all tokens" : `top-k ${KEPT[topK.value]}`;
    live.say(says, `Temperature ${temperature.value.toFixed(2)}, ${k}, ` +
      `top-p ${topP.value.toFixed(2)}: ${count(kept)} of ${count(names.length)} tokens are kept, ` +
      `${(100 * state.lost).toFixed(1)}\u00a0% of the probability is cut off. ` +
      `Entropy ${mine.toFixed(2)} nats, as of a die with ${Math.exp(mine).toFixed(1)} faces; ` +
      `the model’s own is ${own.toFixed(2)} nats.`);
    showDraws();
  }

  function draw(number) {
    for (let n = 0; n < number; n += 1) {
      let left = random();
      // Rounding may leave something over after the last one: then it is the best token.
      const token = state.place.order.find((one) => (left -= state.after[one]) < 0);
      drawn.push(token ?? state.place.order[0]);
      counts[drawn.at(-1)] += 1;
    }
    showDraws();
  }

  function showDraws() {
    const { order } = state.place;
    rows.forEach(({ cells }, at) => {
      const tokens = at < numShown ? [order[at]] : order.slice(numShown);
      const count = tokens.reduce((sum, token) => sum + counts[token], 0);
      cells[3].textContent = drawn.length ? count : "";
    });
    live.enable(forget, drawn.length > 0);
    const last = drawn.slice(-8).map((token) => `‘${names[token]}’`).join(" ");
    live.say(drawnLast, drawn.length
      ? `${drawn.length} drawn, ${new Set(drawn).size} different. The last: ${last}`
      : "Nothing drawn yet.");
  }

  show();
}));
