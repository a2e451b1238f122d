// What a reader has done, kept in this browser and nowhere else: pages read, questions answered,
// exercises ticked off. Nothing is noted that the reader did not do; where nothing can be kept,
// nothing is offered.
document.addEventListener("DOMContentLoaded", () => {
  const KEY = "attention-from-the-ground-up.progress";
  const NONE = { pages: {}, quizzes: {}, exercises: {} };

  const load = () => {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY));
      return Object.fromEntries(Object.keys(NONE).map((kind) => [kind, { ...kept?.[kind] }]));
    } catch {
      return structuredClone(NONE); // what is there was not written here
    }
  };
  const isEmpty = (done) => Object.values(done).every((kind) => !Object.keys(kind).length);
  const keep = (done) => {
    if (isEmpty(done)) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, JSON.stringify(done));
  };
  try {
    keep(load());
  } catch {
    return; // storage is switched off
  }

  const note = (kind, name, value) => {
    status.textContent = "";
    const done = load(); // another tab may have added to it
    if (value) done[kind][name] = value;
    else delete done[kind][name];
    keep(done);
    show();
  };
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const tickBox = (words, onChange) => {
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => onChange(box.checked));
    return [element("label", { className: "progress-tick" }, box, " ", words), box];
  };

  // A box at the end of each page of the course.
  const page = DOCUMENTATION_OPTIONS.pagename;
  const article = document.querySelector("article.bd-article");
  const isPage = article && document.querySelector("link[rel=next], link[rel=prev]");
  const [readLabel, readBox] = tickBox("I have read this page", (on) => note("pages", page, on));
  const forget = element("button", { type: "button", textContent: "Forget my progress" });
  const status = element("span", { className: "progress-says" });
  status.setAttribute("role", "status");
  let forgotten = null;
  forget.addEventListener("click", () => {
    const back = forgotten;
    forgotten = back ? null : load();
    keep(back ?? structuredClone(NONE));
    status.textContent = back ? "Everything is back." : "All of it is forgotten.";
    show();
  });
  if (isPage) {
    const about = "Ticks and answers stay in this browser.";
    article.append(
      element("div", { className: "reading-progress" }, readLabel, element("span", {}, about), forget, status),
    );
  }

  // A box for each exercise.
  const exercises = [...document.querySelectorAll(".exercise-tick")].map((place) => {
    const { exercise, title } = place.dataset;
    const [label, box] = tickBox("done", (on) => note("exercises", exercise, on));
    box.setAttribute("aria-label", `done: ${title}`);
    place.append(label);
    return [exercise, box];
  });

  // What was answered last, beside the question.
  const quizzes = [...document.querySelectorAll("fieldset.quiz")].map((quiz) => {
    const mark = element("span", { className: "progress-answer" });
    quiz.querySelector(".quiz-tag").append(mark);
    quiz.querySelector("button").addEventListener("click", () => {
      const chosen = quiz.querySelector("input:checked");
      if (!chosen) return;
      const why = quiz.querySelector(`details [data-option="${chosen.value}"]`);
      note("quizzes", quiz.id, why.querySelector(".quiz-right") ? "right" : "not quite");
    });
    return [quiz.id, mark];
  });

  // A mark at each link to a page that was read.
  const links = [...document.querySelectorAll("nav.bd-links a, .map-title a")].map((link) => {
    const name = new URL(link.href).pathname.split("/").pop().replace(/\.html$/, "") || "index";
    return [link.getAttribute("href") === "#" ? page : name, link];
  });

  function show() {
    const done = load();
    readBox.checked = page in done.pages;
    for (const [name, box] of exercises) box.checked = name in done.exercises;
    for (const [name, mark] of quizzes) {
      mark.textContent = name in done.quizzes ? ` · answered, ${done.quizzes[name]}` : "";
    }
    for (const [name, link] of links) {
      const mark = link.querySelector(".progress-mark");
      if (name in done.pages && !mark) {
        const words = element("span", { className: "visually-hidden", textContent: "read" });
        link.append(element("span", { className: "progress-mark" }, " ", words));
      } else if (!(name in done.pages)) mark?.remove();
    }
    if (!isEmpty(done)) forgotten = null;
    forget.textContent = forgotten ? "Take that back" : "Forget my progress";
    forget.hidden = isEmpty(done) && !forgotten;
  }
  show();
  addEventListener("storage", show);
});
