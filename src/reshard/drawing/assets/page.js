// @ts-check
// What all pages have: the data block, copy buttons, a filter for rows, state in the link.
"use strict";

/** @type {any} */
const DATA = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "null");

/**
 * An element with text and attributes; text never becomes markup.
 * @param {string} name
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Node | string)} children
 * @returns {HTMLElement}
 */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/**
 * The same for SVG.
 * @param {string} name
 * @param {Record<string, string | number>} [attributes]
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/** @param {string} id @returns {HTMLElement} */
function at(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** The state that the link holds. @returns {URLSearchParams} */
function linked() {
  const text = location.hash.slice(1);
  return new URLSearchParams(text.includes("=") ? text : "");
}

/**
 * Keep some state in the link, so that it can be sent.
 * @param {Record<string, string | number | null>} fields null takes one out
 */
function link(fields) {
  const state = linked();
  for (const [key, value] of Object.entries(fields)) {
    if (value === null) state.delete(key);
    else state.set(key, String(value));
  }
  try {
    history.replaceState(null, "", `#${state}`);
  } catch {
    // inside a frame without an address the state lasts as long as the page
  }
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = /** @type {HTMLElement} */ (button.nextElementSibling);
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection()?.removeAllRanges();
    getSelection()?.addRange(range);
    try {
      await navigator.clipboard.writeText(text.textContent || "");
      button.textContent = "copied";
    } catch {
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
  });
}

for (const field of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[data-filters]"))) {
  const rows = /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll(`[data-filtered="${CSS.escape(field.dataset.filters || "")}"] tbody tr`));
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = (row.textContent || "").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    for (const arcs of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".arcs"))) {
      arcs.hidden = words.length > 0; // they join rows that all stand
    }
    link({ search: field.value || null });
  };
  field.value = linked().get("search") || "";
  if (field.value) filter();
  field.addEventListener("input", filter);
}
