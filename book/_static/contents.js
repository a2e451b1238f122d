// The list of a page's sections follows its reader: it marks the section that stands at the top of
// the window, also after a jump, and keeps it in sight.
window.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector(".bd-sidebar-secondary");
  const links = [...(list?.querySelectorAll(".page-toc a[href^='#']") ?? [])];
  const sections = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
  if (!links.length || sections.includes(null)) return;

  const here = () => {
    const isAtTheEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    const top = isAtTheEnd ? innerHeight : 90;
    return sections.findLastIndex((section) => section.getBoundingClientRect().top <= top);
  };
  const keepInSight = (link) => {
    const [place, frame] = [link.getBoundingClientRect(), list.getBoundingClientRect()];
    const room = frame.height / 4; // what comes next is seen, too
    if (place.top < frame.top) list.scrollTop += place.top - frame.top - room;
    else if (place.bottom > frame.bottom) list.scrollTop += place.bottom - frame.bottom + room;
  };
  const follow = () => {
    const now = links[here()];
    for (const link of links) {
      if (link.classList.contains("active") === (link === now)) continue;
      link.classList.toggle("active", link === now);
      if (link !== now) link.removeAttribute("aria-current");
      else {
        link.setAttribute("aria-current", "true");
        keepInSight(link);
      }
    }
    for (const entry of list.querySelectorAll(".toc-entry")) {
      entry.classList.toggle("active", entry.contains(now ?? null));
    }
  };
  let isWaiting = false;
  const soon = () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      follow();
    });
  };
  addEventListener("scroll", soon, { passive: true });
  // The theme has an opinion of its own, which is often of a moment ago.
  new MutationObserver(soon).observe(list, { attributeFilter: ["aria-current"], subtree: true });
});
