"use strict";
const rows = [...document.querySelectorAll(".row")];
const buttons = [...document.querySelectorAll(".filters button")];
const search = document.querySelector("input[type=search]");
const none = document.querySelector(".none");
const chosen = new Set();

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.querySelector("summary").textContent.toLowerCase();
    const fits = (!chosen.size || chosen.has(row.dataset.status)) && words.every((word) => text.includes(word));
    row.hidden = !fits;
    shown += fits;
  }
  none.hidden = shown > 0;
  for (const button of buttons) {
    const status = button.dataset.status;
    button.setAttribute("aria-pressed", status ? chosen.has(status) : !chosen.size);
  }
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    const status = button.dataset.status;
    if (!status) chosen.clear();
    else if (!chosen.delete(status)) chosen.add(status);
    show();
  });
}
search.addEventListener("input", show);

function open_target() {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!row || !row.classList.contains("row")) return;
  if (row.hidden) {
    chosen.clear();
    search.value = "";
    show();
  }
  row.open = true;
  row.scrollIntoView({ block: "center" });
}
addEventListener("hashchange", open_target);
open_target();

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.nextElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1200);
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
