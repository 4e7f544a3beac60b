"use strict";
// Buttons beside commands.
document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const text = button.parentElement.querySelector("pre");
  getSelection().selectAllChildren(text);
  navigator.clipboard?.writeText(text.textContent.trim()).then(
    () => { button.textContent = "Copied"; },
    () => { button.textContent = "Selected"; },
  );
});
