"use strict";
// A picture that is chosen, or dropped anywhere on the page, is searched by at once.
(() => {
  const input = document.querySelector("input[type=file]");
  input.addEventListener("change", () => input.form.requestSubmit());
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (!event.dataTransfer.files.length) return;
    input.files = event.dataTransfer.files;
    input.form.requestSubmit();
  });
})();
