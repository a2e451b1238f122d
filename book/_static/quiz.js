// Checks an answer in place: shows the explanation that stands below the options.
document.addEventListener("DOMContentLoaded", () => {
  for (const quiz of document.querySelectorAll("fieldset.quiz")) {
    const button = quiz.querySelector("button");
    const status = quiz.querySelector("[role=status]");
    button.hidden = false;
    button.addEventListener("click", () => {
      const chosen = quiz.querySelector("input:checked");
      if (chosen) {
        const explanation = quiz.querySelector(`[data-option="${chosen.value}"]`);
        status.innerHTML = explanation.innerHTML;
      } else {
        status.textContent = "Choose an answer first.";
      }
    });
    quiz.addEventListener("change", () => status.replaceChildren());
  }
});
