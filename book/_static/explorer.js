// Shows what each head of a trained model looks at. What it needs stands on the page as JSON (see
// explorer.py): the queries and keys of one text. Scores and softmax are computed here.
document.addEventListener("DOMContentLoaded", () => {
  const { element, percent } = live;
  const MASKS = {
    causal: ["causal: the past and itself", (query, key) => key <= query],
    past: ["the past without itself", (query, key) => key < query],
    window: ["sliding window", (query, key, width) => key <= query && key > query - width],
    none: ["none: every token", () => true],
  };
  const SCALES = {
    root: ["divided by √d_head, as trained", (d) => 1 / Math.sqrt(d)],
    one: ["as they are", () => 1],
    d: ["divided by d_head", (d) => 1 / d],
  };
  const NUM_SAID = 3;
  const textsOf = (options) =>
    Object.fromEntries(Object.entries(options).map(([value, [text]]) => [value, text]));

  // One array of numbers per token of each head, in the order of layers and heads.
  function unpacked({ steps, numbers }, length, width) {
    const bytes = Uint8Array.from(atob(numbers), (letter) => letter.charCodeAt(0));
    const whole = new DataView(bytes.buffer);
    return steps.map((step, head) =>
      Array.from({ length }, (_, token) =>
        Float64Array.from({ length: width }, (_, i) =>
          step * whole.getInt16(2 * ((head * length + token) * width + i), true))));
  }

  function attentionWeights(queries, keys, isAllowed, scale) {
    return queries.map((query, i) => live.maskedSoftmax(
      keys.map((key) => scale * live.dot(key, query)), keys.map((_, j) => isAllowed(i, j))));
  }

  function largest(row) {
    const order = [...row.keys()].sort((a, b) => row[b] - row[a] || a - b);
    return order.slice(0, NUM_SAID).filter((key) => row[key] > 0);
  }

  function sentence(names, row, query) {
    const most = largest(row);
    if (!most.length) return `${names[query]} may look at nothing: all its weights are 0.`;
    const said = most.map((key) => `${names[key]} ${percent(row[key])}`).join(", ");
    const others = row.filter((weight) => weight > 0).length - most.length;
    if (!others) return `${names[query]} looks at ${said}.`;
    const rest = percent(1 - most.reduce((sum, key) => sum + row[key], 0));
    return `${names[query]} looks at ${said}, and at ${others} more ${rest}.`;
  }

  // A small weight is worth seeing: shades follow the root, numbers say how much it is.
  const shade = (weight) => Math.sqrt(weight);

  function draw(canvas, weights) {
    const length = weights.length;
    const image = new ImageData(length, length);
    weights.flat().forEach((weight, at) =>
      image.data.set([42, 127, 196, 255 * shade(weight)], 4 * at)); // plotstyle.FULL, undimmed
    Object.assign(canvas, { width: length, height: length });
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function start(root, data) {
    const { names, numLayers, numHeads, dHead } = data;
    const length = names.length;
    const queries = unpacked(data.queries, length, dHead);
    const keys = unpacked(data.keys, length, dHead);
    const state = { head: data.layer * numHeads + data.head, token: data.token };
    let maps; // the weights of every head under the present settings

    const says = root.querySelector(".live-says");
    const summary = root.querySelector(".explorer-table > summary");
    const rows = [...root.querySelector("table").tBodies[0].rows];

    // The text: one radio button per token, so that arrow keys move as they do everywhere.
    const shown = [...root.querySelectorAll(".explorer-token")];
    const tokens = shown.map((old, index) => {
      const input = element("input", { type: "radio", name: `${root.id}-token`, value: index });
      const number = element("span", { className: "explorer-number" });
      number.setAttribute("aria-hidden", "true");
      const piece = element("span", { className: "explorer-piece", textContent: old.textContent });
      const token = element("label", { className: old.className }, input, piece, number);
      if (/^[↵␣]$/.test(old.textContent)) input.setAttribute("aria-label", names[index]);
      input.checked = index === state.token;
      input.addEventListener("change", () => { state.token = index; look(index); });
      token.addEventListener("pointerenter", (event) => {
        if (event.pointerType === "mouse") look(index);
      });
      old.replaceWith(token);
      return { token, number, input };
    });
    const text = root.querySelector(".explorer-tokens");
    text.setAttribute("role", "radiogroup");
    text.setAttribute("aria-label", "Token that looks");
    text.addEventListener("pointerleave", () => look(state.token));

    // All heads, small: one radio button each.
    const grid = element("div", { className: "explorer-grid" });
    grid.style.setProperty("--heads", numHeads);
    const small = queries.map((_, index) => {
      const [layer, head] = [Math.floor(index / numHeads), index % numHeads];
      const input = element("input", { type: "radio", name: `${root.id}-head`, value: index });
      const canvas = element("canvas");
      const name = element("span", { textContent: `${layer}.${head}` });
      input.setAttribute("aria-label", `${layer}.${head}: layer ${layer}, head ${head}`);
      input.checked = index === state.head;
      input.addEventListener("change", () => { state.head = index; show(); });
      grid.append(element("label", { className: "explorer-head" }, input, canvas, name));
      return canvas;
    });
    const heads = element("fieldset", { className: "explorer-heads" },
      element("legend", { textContent: "Heads (layer.head)" }), grid);

    // The chosen head, large: a row for each token that looks, a column for each looked at.
    const map = element("canvas", { className: "explorer-map" });
    map.setAttribute("role", "img");
    const row = element("div", { className: "explorer-row" });
    const column = element("div", { className: "explorer-column", hidden: true });
    const frame = element("div", { className: "explorer-frame" }, map, row, column);
    const cell = element("p", { className: "explorer-cell" });
    const title = element("p", { className: "explorer-title live-title" });
    const large = element("div", { className: "explorer-large" }, title, frame, cell);
    const hint = "Rows look, columns are looked at; the fuller a cell, the larger the weight. " +
      "Point at one to read it.";
    const readCell = (event) => {
      const box = map.getBoundingClientRect();
      const [query, key] =
        [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width]
          .map((share) => Math.min(length - 1, Math.max(0, Math.floor(share * length))));
      look(query);
      column.hidden = false;
      column.style.left = `${(100 * key) / length}%`;
      const weight = (100 * maps[state.head][query][key]).toFixed(1);
      cell.textContent = `${names[query]} gives ${names[key]} ${weight}\u00a0%.`;
      return query;
    };
    const forgetCell = () => {
      column.hidden = true;
      cell.textContent = hint;
    };
    frame.addEventListener("pointermove", readCell);
    frame.addEventListener("pointerleave", () => {
      forgetCell();
      look(state.token);
    });
    frame.addEventListener("click", (event) => { // also a tap, when the finger has left
      state.token = readCell(event);
      tokens[state.token].input.checked = true;
    });
    row.style.height = column.style.width = `${100 / length}%`;

    // What may be changed.
    const mask = live.choice("Mask", "mask", textsOf(MASKS));
    const width = element("input", { type: "number", name: "width", min: 1, max: length, value: 4 });
    const widthLabel = element("label", {},
      element("span", { textContent: "Width of the window" }), width);
    const scale = live.choice("Scores", "scale", textsOf(SCALES));
    const timesOf = (power) => Number((2 ** power).toPrecision(2));
    const sharpness = live.slider("Sharper by", "sharpness",
      { min: -3, max: 3, step: 0.5, value: 0, says: (power) => `× ${timesOf(power)}` });
    const numbers = live.check("Weights below the tokens", "numbers");
    const back = live.button("As the model has it", () => {
      [mask.value, scale.value, sharpness.value] = ["causal", "root", 0];
      compute();
    });
    const settings = live.settings(compute, mask, widthLabel, scale, sharpness, numbers, back);
    const note = element("p", { className: "live-note", textContent:
      "Layers above the first read what the layers below made of the text as the model was " +
      "trained, with the causal mask and scores divided by √d_head. A switch changes what the " +
      "heads shown do with their queries and keys, and nothing below them." });
    root.querySelector(".explorer-table").before(
      element("div", { className: "explorer-maps" }, heads, large), settings);
    root.append(note);

    function compute() {
      const window = Math.min(length, Math.max(1, Math.floor(width.valueAsNumber) || 1));
      const isAllowed = (query, key) => MASKS[mask.value][1](query, key, window);
      const times = 2 ** sharpness.value;
      const factorOfScores = times * SCALES[scale.value][1](dHead);
      maps = queries.map((q, head) => attentionWeights(q, keys[head], isAllowed, factorOfScores));
      maps.forEach((weights, head) => draw(small[head], weights));
      widthLabel.hidden = mask.value !== "window";
      root.classList.toggle("explorer-numbered", numbers.value);
      live.enable(back, mask.value !== "causal" || scale.value !== "root" || times !== 1);
      show();
    }

    function show() {
      forgetCell();
      const weights = maps[state.head];
      const where = `Layer ${Math.floor(state.head / numHeads)}, head ${state.head % numHeads}`;
      draw(map, weights);
      title.textContent = where;
      map.setAttribute("aria-label",
        `${where}: a map of the weights of all tokens, whose largest stand in the table below`);
      summary.textContent = `${where}: every token, as a table`;
      rows.forEach((line, query) => {
        const most = largest(weights[query]);
        [...line.cells].slice(1).forEach((cell, place) => {
          const key = most[place];
          cell.textContent = key === undefined ? "" : `${names[key]} ${percent(weights[query][key])}`;
        });
      });
      look(state.token);
    }

    function look(query) {
      const weights = maps[state.head][query];
      tokens.forEach(({ token, number }, key) => {
        token.classList.toggle("explorer-looks", key === query);
        token.style.setProperty("--weight", weights[key]);
        token.style.setProperty("--shade", shade(weights[key]));
        number.textContent = (100 * weights[key]).toFixed(1);
      });
      row.style.top = `${(100 * query) / length}%`;
      live.say(says, sentence(names, weights, query));
    }

    compute();
  }

  live.wake("explorer", start);
});
