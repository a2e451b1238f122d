// What the figures that compute have in common (see live/__init__.py). Each of them is a
// <div class="live KIND"> with what it needs as JSON. Style sheets and scripts of a page come in
// any order, so the scripts ask for this one when the page has been read, not before.
const live = (() => {
  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // Controls: inputs as browsers make them, each with its label, and read by `value`.

  function choice(text, name, options) {
    const select = element("select", { name });
    for (const [value, shown] of Object.entries(options)) select.add(new Option(shown, value));
    return {
      label: element("label", {}, element("span", { textContent: text }), select),
      get value() { return select.value; },
      set value(chosen) { select.value = chosen; },
    };
  }

  // `says` puts the number into words: they stand beside the label and are read out.
  function slider(text, name, { min, max, step = 1, value, says = String }) {
    const input = element("input", { type: "range", name, min, max, step, value });
    const words = element("span", { className: "live-value" });
    words.setAttribute("aria-hidden", "true"); // the slider itself says it
    function show() {
      words.textContent = says(input.valueAsNumber);
      input.setAttribute("aria-valuetext", words.textContent);
    }
    input.addEventListener("input", show);
    show();
    return {
      label: element("label", {}, element("span", {}, `${text} `, words), input),
      get value() { return input.valueAsNumber; },
      set value(number) { input.value = number; show(); },
    };
  }

  function check(text, name, isChecked = false) {
    const input = element("input", { type: "checkbox", name, checked: isChecked });
    return {
      label: element("label", { className: "live-check" }, input,
        element("span", { textContent: text })),
      get value() { return input.checked; },
      set value(chosen) { input.checked = chosen; },
    };
  }

  function button(text, act) {
    const made = element("button", { type: "button", textContent: text });
    made.addEventListener("click", act);
    return made;
  }

  // A button that has nothing to do says so and stays where the keyboard is.
  function enable(button, isEnabled) {
    button.setAttribute("aria-disabled", !isEnabled);
  }

  // Controls and buttons side by side; `changed` is called when one of them is.
  function settings(changed, ...controls) {
    const made = element("div", { className: "live-settings" },
      ...controls.map((control) => control.label ?? control));
    made.addEventListener("input", changed);
    return made;
  }

  // A share as a bar; `was` marks where it would be otherwise. The number stands beside it.
  function bar() {
    const made = element("span", { className: "live-bar" });
    made.setAttribute("aria-hidden", "true");
    return {
      bar: made,
      show(share, was) {
        made.style.setProperty("--share", share || 0);
        made.style.setProperty("--was", was);
      },
    };
  }

  // NaN where every score is minus infinity, as 0 / 0 is.
  function softmax(scores) {
    const highest = Math.max(...scores);
    const shares = scores.map((score) => Math.exp(score - highest));
    const total = shares.reduce((sum, share) => sum + share, 0);
    return shares.map((share) => share / total);
  }

  // As groundup.core.masks.masked_softmax: where nothing is allowed, zeros.
  function maskedSoftmax(scores, allowed) {
    const weights = softmax(scores.map((score, j) => (allowed[j] ? score : -Number.MAX_VALUE)));
    return weights.map((weight, j) => (allowed[j] ? weight : 0));
  }

  const dot = (a, b) => a.reduce((sum, x, n) => sum + x * b[n], 0);

  const percent = (share) => `${Math.floor(100 * share + 0.5)}\u00a0%`;

  // A sentence is announced when it changes, and would be when it is only written again. While a
  // slider moves it is busy: what it said on the way is of no use to anybody who listens.
  const settling = new WeakMap();
  function say(paragraph, said) {
    if (paragraph.textContent === said) return;
    paragraph.setAttribute("aria-busy", "true");
    paragraph.textContent = said;
    clearTimeout(settling.get(paragraph));
    settling.set(paragraph, setTimeout(() => paragraph.removeAttribute("aria-busy"), 400));
  }

  // Numbers of 32 bits out of base64.
  function unpacked(text) {
    const view = new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
    return Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }

  function wake(kind, start) {
    for (const root of document.querySelectorAll(`.live.${kind}`)) {
      start(root, JSON.parse(root.querySelector("script").textContent));
      root.classList.add("live-awake");
    }
  }

  return {
    element, choice, slider, check, button, enable, settings, bar,
    softmax, maskedSoftmax, dot, percent, say, unpacked, wake,
  };
})();
