// A text that is written token by token, with a cache and without (see live/caching.py).
document.addEventListener("DOMContentLoaded", () => live.wake("caching", (root, data) => {
  const { names, steps } = data;
  const [tokens, counts] = [...root.querySelectorAll("tbody")].map((body) =>
    [...body.rows].map((row) => [...row.cells].slice(1)));
  const says = root.querySelector(".live-says");
  const step = live.slider("Step", "step",
    { min: 1, max: steps.length, value: data.start, says: (n) => `${n} of ${steps.length}` });
  const [back, on] = [["One back", -1], ["One on", 1]].map(([text, by]) =>
    live.button(text, () => { step.value += by; show(); }));
  says.before(live.settings(show, step, back, on));

  const count = (number) => number.toLocaleString("en");
  const millions = (flops) => (flops / 1e6).toLocaleString("en",
    { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const sum = (done, field) => done.reduce((total, one) => total + one[field], 0);

  function show() {
    const done = steps.slice(0, step.value);
    const now = done[done.length - 1];
    const before = now.length - now.new;
    live.enable(back, step.value > 1);
    live.enable(on, step.value < steps.length);

    tokens.forEach((cells, place) => {
      const isNew = place >= before;
      const words = isNew ? ["new", "new", "new", "new"] : ["–", "kept", "again", "again"];
      cells.forEach((cell, column) => {
        const word = place < now.length ? words[column] : "";
        cell.textContent = word;
        cell.className = /\w/.test(word) ? `caching-${word}` : "";
      });
    });
    const written = [
      [count(sum(done, "new")), count(sum(done, "length"))],
      [millions(sum(done, "keptFlops")), millions(sum(done, "againFlops"))],
      [count(now.bytes), "0"],
      [now.kept, now.again].map((share) => `${now.next} ${(100 * share).toFixed(1)}\u00a0%`),
    ];
    written.forEach((texts, line) => texts.forEach((text, column) => {
      counts[line][column].textContent = text;
    }));

    const enters = before ? `${names[before]} enters` : `the prompt enters, ${now.new} tokens at once`;
    live.say(says, `Step ${step.value} of ${steps.length}: ${enters}. With a cache the model reads ` +
      `${now.new} token${now.new > 1 ? "s" : ""}, uses the keys and values of ${before} that it ` +
      `kept, and keeps ${count(now.bytes)} bytes from now on. Without one it reads all ` +
      `${now.length}. Both say that ${now.next} comes next.`);
  }

  show();
}));
