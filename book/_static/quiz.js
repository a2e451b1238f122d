// Checks an answer in place: shows the explanation that stands below the options.
for (const quiz of document.querySelectorAll("fieldset.quiz")) {
  const button = quiz.querySelector("button");
  const status = quiz.querySelector("[role=status]");
  button.hidden = false;
  button.addEventListener("click", () => {
    const chosen = quiz.querySelector("input:checked");
    if (!chosen) {
      status.textContent = "Choose an answer first.";
      return;
    }
    const explanation = quiz.querySelector(`[data-option="${chosen.value}"]`);
    status.innerHTML = explanation.innerHTML;
  });
  quiz.addEventListener("change", () => status.replaceChildren());
}
