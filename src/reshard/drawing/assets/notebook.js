// @ts-check
// In a notebook: a click on a tile marks those of the same devices beside it; where scripts are taken away nothing is lost.
(() => {
  const drawing = document.currentScript?.parentElement;
  if (!drawing) return;
  /** The devices that hold a tile, out of what it says. @param {Element} tile */
  const holders = (tile) => {
    const says = tile.querySelector("title")?.textContent || "";
    return (/: devices? ([\d ]+)/.exec(says)?.[1] || "").split(" ").filter(Boolean);
  };
  drawing.addEventListener("click", (event) => {
    const picked = event.target instanceof Element ? event.target.closest("[data-tile]") : null;
    const wanted = new Set(picked ? holders(picked) : []);
    for (const tile of drawing.querySelectorAll("[data-tile]")) {
      const width = holders(tile).some((device) => wanted.has(device)) ? "4" : "1.5";
      for (const outline of tile.querySelectorAll("rect[stroke]")) outline.setAttribute("stroke-width", width);
    }
  });
})();
