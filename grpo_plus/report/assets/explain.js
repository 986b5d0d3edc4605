"use strict";
// The page of a config: what it resolves to, as text, and the playground of its estimator.
byId("title").textContent = DATA.name;
byId("lines").textContent = DATA.lines.join("\n");
byId("play").append(playground(DATA.sample));
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("grpo-plus-theme", theme); } catch { /* storage may be off */ }
  applyTheme();
});
system.addEventListener("change", applyTheme);
