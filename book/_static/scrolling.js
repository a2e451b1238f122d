// What is wider than its frame (a table, a formula) can be scrolled by keyboard, too.
const frames = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const frame = target.closest(".wide, div.math");
    // Beside its number a formula scrolls by itself, not with its frame.
    for (const part of [frame, ...frame.querySelectorAll("mjx-container")]) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
      else part.removeAttribute("tabindex");
    }
  }
});
window.addEventListener("load", () => {
  for (const frame of document.querySelectorAll(".wide, div.math")) {
    frames.observe(frame);
    for (const child of frame.children) frames.observe(child);
  }
});
