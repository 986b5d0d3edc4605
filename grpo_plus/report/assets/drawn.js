"use strict";
// What was drawn: charts of the kinds of prompts and of dead groups.
function drawnSection() {
  const told = DATA.drawn;
  if (!told) { byId("drawn").remove(); byId("drawn-link").remove(); return; }
  byId("drawn-body").append(make("div", { class: "panels" }, told.panels.map(panelFigure)));
}
