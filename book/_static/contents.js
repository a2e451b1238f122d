// The list of a page's sections follows its reader: the section that is being read stays in sight.
window.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector(".bd-sidebar-secondary");
  if (!list) return;
  const follow = () => {
    const link = list.querySelector(".page-toc a.active");
    if (!link) return;
    const [place, frame] = [link.getBoundingClientRect(), list.getBoundingClientRect()];
    const room = frame.height / 4; // what comes next is seen, too
    if (place.top < frame.top) list.scrollTop += place.top - frame.top - room;
    else if (place.bottom > frame.bottom) list.scrollTop += place.bottom - frame.bottom + room;
  };
  const attributes = { attributeFilter: ["aria-current"], subtree: true };
  new MutationObserver(follow).observe(list, attributes);
});
