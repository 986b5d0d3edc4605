"use strict";
// Elements, numbers and times. Text of a model only ever goes through textContent.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) element.append(child);
  return element;
}

function figure(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (unit === "share") return `${(100 * value).toFixed(Math.abs(value) < 0.0995 && value !== 0 ? 1 : 0)}%`;
  if (unit === "seconds") return value >= 100 ? duration(value) : `${number(value)} s`;
  if (unit === "tokens") return Math.round(value).toLocaleString("en");
  return number(value);
}

function number(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("-", "−").replace("e+", "e");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toFixed(digits).replace("-", "−");
}

const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${value === 0 ? "0" : value.toFixed(Math.abs(value) < 10 ? 2 : 1).replace("-", "−")}`);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function amount(count) {
  for (const [size, name] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) if (count >= size) return `${(count / size).toPrecision(3).replace(/\.?0+$/, "")} ${name}`;
  return String(count);
}

const STATUS = {
  correct: ["✓", "correct"], partial: ["~", "partial"], wrong: ["✕", "wrong"], unparsable: ["?", "unparsable"],
  timeout: ["⧗", "timeout"], error: ["!", "error"], not_applicable: ["–", "na"],
};
const statusName = (status) => status.replaceAll("_", " ");
const statusColour = (status) => `var(--${(STATUS[status] || ["", "na"])[1]})`;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The scheme: as the system says, unless chosen here.
const THEMES = ["auto", "light", "dark"];
const system = window.matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try { theme = localStorage.getItem("grpo-plus-theme") || "auto"; } catch { /* storage may be off */ }
if (!THEMES.includes(theme)) theme = "auto";

function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  const label = { auto: "as the system", light: "light", dark: "dark" }[theme];
  byId("theme").textContent = `Colours: ${label}`;
  byId("theme").setAttribute("aria-label", `Colour scheme: ${label}`);
}
applyTheme();
