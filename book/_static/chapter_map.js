// Brings out the lines of the chapter that is pointed at or focused.
document.addEventListener("DOMContentLoaded", () => {
  for (const map of document.querySelectorAll(".chapter-map")) {
    const rows = [...map.querySelectorAll(".map-rows > li")];
    const choose = (event) => {
      const leaves = ["pointerleave", "focusout"].includes(event.type);
      const chosen = leaves ? -1 : rows.indexOf(event.target.closest(".map-rows > li"));
      map.classList.toggle("map-chosen", chosen >= 0);
      for (const arc of map.querySelectorAll("path")) {
        const { base, user } = arc.dataset;
        arc.classList.toggle("map-lit", chosen === Number(base) || chosen === Number(user));
      }
    };
    for (const type of ["pointerover", "pointerleave", "focusin", "focusout"]) {
      map.addEventListener(type, choose);
    }
  }
});
