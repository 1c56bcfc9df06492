// @ts-check
// A plan that moves: the mesh frame by frame, and one device with its tile, its pieces and its partners.
"use strict";

/** The colour of what lies at the start of a box. @param {Box} box @returns {string} */
function contentColour(box) {
  let number = 0;
  box.forEach(([start], dim) => {
    const ends = PLAN.contents[dim];
    let cell = 0;
    while (cell < ends.length - 2 && ends[cell + 1] <= start) cell++;
    number = number * (ends.length - 1) + cell;
  });
  return PLAN.colours[number];
}

/** A box cut where colours change, so that each part has one. @param {Box} box @returns {Box[]} */
function coloured(box) {
  /** @type {Box[]} */
  let parts = [[]];
  box.forEach(([start, stop], dim) => {
    const inner = PLAN.contents[dim].filter((cut) => start < cut && cut < stop);
    const ends = [start, ...inner, stop];
    parts = parts.flatMap((part) => ends.slice(1).map((end, place) =>
      [...part, /** @type {[number, number]} */ ([ends[place], end])]));
  });
  return parts;
}

// Up to so many devices are drawn with what they hold, up to so many pieces of a round fly.
const MOST_MINIATURES = 64;
const MOST_FLIGHTS = 160;
const DELAY = 900;

/** What is seen of the plan, and what keys and clicks do. */
class Player {
  /** @param {PlanModel} model */
  constructor(model) {
    this.model = model;
    this.frame = 0;
    /** @type {number | null} */
    this.picked = null;
    /** @type {ReturnType<typeof setTimeout> | null} */
    this.timer = null;
    this.drawing = new Frame(PLAN.frame);
    this.small = model.devices.length <= MOST_MINIATURES;
    /** @type {Map<number, {group: SVGElement, held: SVGElement, x: number, y: number, wide: number, tall: number}>} */
    this.cells = new Map();
    /** @type {Set<SVGElement>} */
    this.partners = new Set();
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.drawMesh();
    this.listen();
    const state = linked();
    const device = state.get("device");
    if (device !== null && model.place.has(+device)) this.pick(model.place.get(+device) ?? null, false);
    this.show(Math.min(Math.max(Math.trunc(+(state.get("frame") || 0)) || 0, 0), model.turns.length - 1), false);
    document.body.dataset.ready = "1";
  }

  drawMesh() {
    const count = this.model.devices.length;
    const room = Math.max(240, Math.min(at("mesh").clientWidth || 640, 700));
    for (const block of PLAN.blocks) {
      const across = block.columns;
      const gap = this.small ? 8 : 1;
      const aspect = this.small ? PLAN.frame.aspect : 1;
      const least = this.small ? 44 : count > 4096 ? 4 : 9;
      const wide = Math.max(least, Math.min(this.small ? 120 : 24, Math.floor((room - 8) / across) - gap));
      const tall = Math.round(wide * aspect), head = this.small ? 16 : 0;
      const lines = Math.ceil(block.places.length / across);
      const width = across * (wide + gap) + gap, height = lines * (tall + head + gap) + gap;
      const picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "grid",
        "aria-label": block.title, class: "mesh" });
      const cells = document.createDocumentFragment();
      block.places.forEach((place, number) => {
        if (place < 0) return;
        const x = gap + (number % across) * (wide + gap);
        const y = gap + Math.floor(number / across) * (tall + head + gap) + head;
        const device = this.model.devices[place];
        const fields = { "data-device": device, "data-place": place, tabindex: -1, role: "gridcell",
          "aria-label": `device ${device}` };
        const group = this.small ? shape("g", { class: "device", ...fields })
          : shape("rect", { class: "device heat", x, y, width: wide, height: tall, ...fields });
        const held = this.small ? shape("g", { class: "held" }) : group;
        if (this.small) {
          group.append(shape("text", { x, y: y - 4, class: "small" }, String(device)),
            shape("rect", { x, y, width: wide, height: tall, class: "cell" }), held);
        }
        cells.append(group);
        this.cells.set(place, { group, held, x, y, wide, tall });
      });
      picture.append(cells);
      this.drawHosts(picture, block, wide + gap, tall + head + gap, gap / 2);
      picture.append(shape("g", { class: "above" }));
      const scroll = element("div", { class: "scroll" }, picture);
      at("mesh").append(element("p", { class: "faint" }, block.title), scroll);
    }
    this.cells.values().next().value?.group.setAttribute("tabindex", "0");
  }

  /**
   * A line between neighbours on different hosts.
   * @param {SVGElement} picture @param {Block} block @param {number} wide @param {number} tall @param {number} edge
   */
  drawHosts(picture, block, wide, tall, edge) {
    const { hosts } = PLAN, { places, columns } = block;
    if (!hosts) return;
    places.forEach((place, number) => {
      const x = edge + (number % columns) * wide, y = edge + Math.floor(number / columns) * tall;
      const right = (number + 1) % columns ? places[number + 1] : undefined, below = places[number + columns];
      if (right !== undefined && hosts[place] !== hosts[right]) {
        picture.append(shape("line", { x1: x + wide, x2: x + wide, y1: y, y2: y + tall, class: "host" }));
      }
      if (below !== undefined && hosts[place] !== hosts[below]) {
        picture.append(shape("line", { x1: x, x2: x + wide, y1: y + tall, y2: y + tall, class: "host" }));
      }
    });
  }

  /** @param {number} frame @param {boolean} [moved] whether by a step forwards, which is animated */
  show(frame, moved = true) {
    const forwards = frame === this.frame + 1;
    this.frame = frame;
    const { model } = this, progress = this.small ? null : model.progress(frame);
    for (const [place, cell] of this.cells) {
      if (progress) cell.held.setAttribute("fill-opacity", progress[place].toFixed(2));
      else {
        cell.held.replaceChildren();
        this.drawHeld(cell.held, place, cell);
      }
    }
    const turn = model.turns[frame];
    at("state").textContent = `${frame} of ${model.turns.length - 1}: ${turn.label}`;
    const range = /** @type {HTMLInputElement} */ (at("scrub"));
    range.value = String(frame);
    range.setAttribute("aria-valuetext", turn.label);
    document.body.dataset.frame = String(frame);
    if (moved) link({ frame });
    this.markPartners();
    this.drawPanel();
    if (moved && forwards && this.small && !this.calm.matches) this.fly();
  }

  /** @param {SVGElement} group @param {number} place @param {{x: number, y: number, wide: number, tall: number}} cell */
  drawHeld(group, place, cell) {
    for (const { box, part, old, fresh } of this.model.held(this.frame, place)) {
      if (box.some(([start, stop]) => start >= stop)) continue;
      const name = box.map((ends) => ends.join(":")).join(",");
      const one = shape("g", { "data-box": name, "data-old": old ? 1 : 0, "data-part": +part.toFixed(6) });
      for (const piece of coloured(box)) {
        for (const [x, y, wide, tall] of this.drawing.rects(piece)) {
          one.append(shape("rect", { x: cell.x + x * cell.wide, y: cell.y + y * cell.tall,
            width: Math.max(wide * cell.wide, 0.6), height: Math.max(tall * cell.tall, 0.6),
            fill: contentColour(piece), "fill-opacity": old ? 0.28 : 0.35 + 0.65 * Math.min(part, 1) }));
        }
      }
      if (fresh) {
        for (const [x, y, wide, tall] of this.drawing.rects(box)) {
          one.append(shape("rect", { x: cell.x + x * cell.wide, y: cell.y + y * cell.tall, width: wide * cell.wide,
            height: tall * cell.tall, class: "tile" }));
        }
      }
      group.append(one);
    }
  }

  /** Pieces fly from sender to receiver. */
  fly() {
    const turn = this.model.turns[this.frame], rows = this.model.travelling(this.frame);
    if (rows.length > MOST_FLIGHTS || turn.move < 0) return;
    const move = this.model.moves[turn.move];
    for (const row of rows) {
      const from = this.cells.get(move.pieces[1][row]), to = this.cells.get(move.pieces[2][row]);
      if (!from || !to || from.group.parentNode !== to.group.parentNode) continue;
      const above = /** @type {SVGElement} */ (/** @type {Element} */ (to.group.parentNode).querySelector(".above"));
      const box = this.model.box(move, row);
      const [x, y, wide, tall] = this.drawing.rects(box)[0];
      const flight = shape("rect", { x: to.x + x * to.wide, y: to.y + y * to.tall, width: Math.max(wide * to.wide, 3),
        height: Math.max(tall * to.tall, 3), fill: contentColour(box), class: "flight" });
      above.append(flight);
      const start = `translate(${from.x - to.x}px, ${from.y - to.y}px)`;
      const flown = flight.animate([{ transform: start }, { transform: "none" }],
        { duration: DELAY * 0.7, easing: "ease-in-out" });
      flown.onfinish = flown.oncancel = () => flight.remove();
    }
  }

  /** Which devices the picked one takes from and sends to in this frame. */
  markPartners() {
    const turn = this.model.turns[this.frame];
    for (const group of this.partners) group.classList.remove("sends", "takes");
    this.partners.clear();
    if (this.picked === null || turn.move < 0) return;
    const [rounds, senders, receivers] = this.model.moves[turn.move].pieces;
    for (const row of this.model.incoming[turn.move].get(this.picked) || []) {
      if (turn.round >= 0 && rounds[row] !== turn.round) continue;
      if (senders[row] !== this.picked) this.markPartner(senders[row], "sends");
    }
    for (const row of this.model.outgoing[turn.move].get(this.picked) || []) {
      if (turn.round >= 0 && rounds[row] !== turn.round) continue;
      if (receivers[row] !== this.picked) this.markPartner(receivers[row], "takes");
    }
  }

  /** @param {number} place @param {string} role */
  markPartner(place, role) {
    const group = this.cells.get(place)?.group;
    if (!group) return;
    group.classList.add(role);
    this.partners.add(group);
  }

  /** @param {number | null} place @param {boolean} [kept] whether in the link too */
  pick(place, kept = true) {
    this.picked = place;
    for (const [other, { group }] of this.cells) group.classList.toggle("picked", other === place);
    for (const [end, number] of /** @type {[string, number][]} */ ([["before", 0], ["after", PLAN.tiles.length - 1]])) {
      const own = place === null ? -1 : this.model.tileOf[number][place];
      for (const tile of document.querySelectorAll(`.${end} [data-tile]`)) {
        tile.classList.toggle("picked", tile.getAttribute("data-tile") === String(own));
      }
    }
    if (kept) link({ device: place === null ? null : this.model.devices[place] });
    this.markPartners();
    this.drawPanel();
  }

  drawPanel() {
    const panel = at("panel"), place = this.picked, { model } = this;
    if (place === null) {
      panel.replaceChildren(element("p", { class: "faint" },
        "Pick a device, by a click or with the arrow keys in the mesh, for its tile, its pieces and its partners."));
      return;
    }
    const device = model.devices[place], tall = Math.round(220 * PLAN.frame.aspect);
    const picture = shape("svg", { width: 222, height: tall + 2, viewBox: `-1 -1 222 ${tall + 2}`, role: "img",
      "aria-label": `what device ${device} holds` });
    const held = shape("g", { class: "held" });
    picture.append(shape("rect", { width: 220, height: tall, class: "cell" }), held);
    this.drawHeld(held, place, { x: 0, y: 0, wide: 220, tall });
    const ends = [0, PLAN.tiles.length - 1].map((end) => model.tile(end, place).map(boxText).join(" and ") || "nothing");
    const total = model.received.reduce((sum, column) => sum + column[place], 0);
    panel.replaceChildren(element("h3", {}, `device ${device}`),
      element("p", {}, `holds ${ends[0]}, needs ${ends[1]}; receives ${bytesText(total * PLAN.unit)}`), picture,
      ...model.moves.flatMap((move, number) => this.pieceList(move, number, place)));
  }

  /** @param {Move} move @param {number} number @param {number} place @returns {HTMLElement[]} */
  pieceList(move, number, place) {
    const { model } = this, turn = model.turns[this.frame];
    const head = element("p", { class: "faint" }, `step ${move.step + 1} ${move.kind}` +
      (move.reduction ? `: what arrives for one box is combined by ${move.reduction}` : ""));
    if (model.sampled && !model.sampled.has(place)) {
      return [head, element("p", {}, `pieces: reshard plan … --device ${model.devices[place]}`)];
    }
    const [rounds, senders, receivers] = move.pieces;
    const list = element("ul");
    const add = (/** @type {number} */ row, /** @type {string} */ verb, /** @type {string} */ rest) => {
      const box = model.box(move, row);
      const size = box.reduce((product, [start, stop]) => product * (stop - start), 1) * PLAN.itemsize;
      const text = `${verb} ${boxText(box)}${rest}${verb === "keeps" ? "" : `, ${bytesText(size)}`}`;
      const now = turn.move === number && turn.round === rounds[row] && verb !== "keeps";
      list.append(element("li", { "data-piece": text, "data-step": move.step }, now ? element("mark", {}, text) : text));
    };
    const incoming = model.incoming[number].get(place) || [], outgoing = model.outgoing[number].get(place) || [];
    for (const row of incoming) if (senders[row] === place) add(row, "keeps", "");
    for (const row of incoming) {
      const verb = model.passes(move, row) ? "hands on" : "receives";
      if (senders[row] !== place) add(row, verb, ` from device ${model.devices[senders[row]]}`);
    }
    for (const row of outgoing) {
      if (receivers[row] !== place) add(row, "sends", ` to device ${model.devices[receivers[row]]}`);
    }
    return [head, list];
  }

  /** @param {number} by */
  step(by) {
    this.stop();
    this.show(Math.min(Math.max(this.frame + by, 0), this.model.turns.length - 1));
  }

  play() {
    if (this.timer !== null) return this.stop();
    if (this.frame === this.model.turns.length - 1) this.show(0);
    at("play").textContent = "pause";
    const delay = Math.max(40, Math.min(DELAY, 20000 / this.model.turns.length));
    const next = () => {
      if (this.frame >= this.model.turns.length - 1) return this.stop();
      this.show(this.frame + 1);
      this.timer = setTimeout(next, delay);
    };
    this.timer = setTimeout(next, delay / 3);
  }

  stop() {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    at("play").textContent = "play";
  }

  listen() {
    const last = this.model.turns.length - 1;
    const range = /** @type {HTMLInputElement} */ (at("scrub"));
    range.max = String(last);
    range.addEventListener("input", () => this.step(+range.value - this.frame));
    at("play").addEventListener("click", () => this.play());
    at("first").addEventListener("click", () => this.step(-last));
    at("back").addEventListener("click", () => this.step(-1));
    at("forward").addEventListener("click", () => this.step(1));
    at("last").addEventListener("click", () => this.step(last));
    at("mesh").addEventListener("click", (event) => this.pickFrom(event));
    at("mesh").addEventListener("keydown", (event) => this.keyInMesh(event));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => {
      const frame = linked().get("frame");
      if (frame !== null && +frame !== this.frame && +frame >= 0 && +frame <= last) this.show(+frame, false);
    });
  }

  /** @param {Event} event */
  pickFrom(event) {
    const device = /** @type {Element} */ (event.target).closest("[data-place]");
    if (!device) return;
    const place = +(device.getAttribute("data-place") || 0);
    this.focus(place);
    this.pick(place === this.picked ? null : place);
  }

  /** @param {number} place */
  focus(place) {
    for (const { group } of this.cells.values()) {
      if (group.getAttribute("tabindex") === "0") group.setAttribute("tabindex", "-1");
    }
    const group = this.cells.get(place)?.group;
    group?.setAttribute("tabindex", "0");
    group?.focus();
  }

  /** Arrows go from device to device, Enter picks. @param {KeyboardEvent} event */
  keyInMesh(event) {
    const group = /** @type {Element} */ (event.target).closest("[data-place]");
    if (!group) return;
    const place = +(group.getAttribute("data-place") || 0);
    const block = PLAN.blocks.find((other) => other.places.includes(place));
    if (!block) return;
    const number = block.places.indexOf(place);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -block.columns, ArrowDown: block.columns }[event.key];
    if (by !== undefined) {
      const next = block.places[number + by];
      if (next !== undefined && next >= 0) this.focus(next);
    } else if (event.key === "Enter" || event.key === " ") this.pickFrom(event);
    else if (event.key === "Escape") this.pick(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, button, summary, pre, .scroll")) return;
    const last = this.model.turns.length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last }[event.key];
    if (steps !== undefined) this.step(steps);
    else if (event.key === " ") this.play();
    else return;
    event.preventDefault();
  }
}

(async () => {
  const tileOf = await unpack(PLAN.tileOf);
  const received = await unpack(PLAN.received);
  const moves = await Promise.all(PLAN.moves.map(async (move) =>
    ({ ...move, pieces: await unpack(move.pieces) })));
  new Player(new PlanModel(tileOf, received, moves));
})();
