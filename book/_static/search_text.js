// What the search shows of a page, on the page of its results: the text of the article, without the
// buttons above it and the lists beside it. Of a word of the glossary, what the word means.
window.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const useless of page.querySelectorAll(".headerlink, .chapter-lists, script, style")) {
      useless.remove();
    }
    const place = anchor ? page.getElementById(anchor.slice(1)) : null;
    if (place?.matches("dt")) {
      let meaning = place.nextElementSibling;
      while (meaning?.matches("dt")) meaning = meaning.nextElementSibling;
      return `${place.textContent.trim()}: ${meaning?.textContent.trim() ?? ""}`;
    }
    return (place ?? page.querySelector("article") ?? page.body).textContent;
  };
});
