// The theme button, and charts, which are drawn when they come near the visible part of the page.
"use strict";
document.getElementById("theme").onclick = () => {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = dark ? "light" : "dark";
  dispatchEvent(new Event("resize")); // the strip of the reader is drawn in the new colours
};
const actions = { export: true, source: false, compiled: false, editor: false };
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    vegaEmbed(target, JSON.parse(target.textContent), { renderer: "svg", actions });
  }
}, { rootMargin: "600px" });
document.querySelectorAll(".chart").forEach((element) => near.observe(element));
