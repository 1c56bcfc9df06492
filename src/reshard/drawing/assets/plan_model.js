// @ts-check
// What the data of a plan's page say: its frames, and what each device holds in each.
"use strict";

/** @typedef {{bytes: number, count: number, columns: number, data: string}} Packed */
/** @typedef {{step: number, kind: string, reduction: string | null, classes: number, hops: number}} MoveFields */
/** @typedef {MoveFields & {pieces: Int32Array[]}} Move */
/** @typedef {{move: number, round: number, label: string, ends: boolean}} Turn */
/** @typedef {[number, number][]} Box */
/** @typedef {{title: string, columns: number, places: number[]}} Block devices as they are drawn, -1 where none is */
/** @typedef {{shape: number[], across: number[], down: number[], layers: number[][], aspect: number}} FrameFields */
/**
 * What player_data.py writes.
 * @typedef {object} PlanData
 * @property {number[] | null} devices null where they are 0, 1, 2, …
 * @property {number} count of devices
 * @property {number} itemsize in bytes
 * @property {string[]} steps their kinds
 * @property {FrameFields} frame
 * @property {number} gap between layers, as a part of one
 * @property {number[][]} contents per dim where colours begin, and where the last ends
 * @property {string[]} colours
 * @property {[number, number][][]} intervals per dim, by number
 * @property {number[][][][]} tiles per end of a step and tile, its boxes, of numbers of intervals
 * @property {Packed} tileOf per end of a step and device, the number of its tile
 * @property {(MoveFields & {pieces: Packed})[]} moves
 * @property {Packed} received per step and device, in units
 * @property {number} unit in bytes
 * @property {number[] | null} sampled the devices whose pieces are here, null where all are
 * @property {Block[]} blocks
 * @property {number[] | null} hosts per device
 */

/** @type {PlanData} */
const PLAN = DATA;

/**
 * The columns that packing.py packed.
 * @param {Packed} packed
 * @returns {Promise<Int32Array[]>}
 */
async function unpack(packed) {
  const raw = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  const numbers = packed.bytes === 2 ? new Int16Array(bytes) : new Int32Array(bytes);
  const columns = [];
  for (let column = 0; column < packed.columns; column++) {
    columns.push(Int32Array.from(numbers.subarray(column * packed.count, (column + 1) * packed.count)));
  }
  return columns;
}

/** @param {Box} box */
const boxText = (box) => box.map(([start, stop]) => `[${start}, ${stop})`).join(" x ") || "()";

/** @param {number} count */
function bytesText(count) {
  for (const [unit, size] of /** @type {[string, number][]} */ ([["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20],
    ["KiB", 1024]])) {
    if (count >= 10 * size || (count >= size && count % size === 0)) return `${+(count / size).toPrecision(4)} ${unit}`;
  }
  return `${count} B`;
}

/** Where boxes lie in a drawing: `TensorFrame` of tensor_frame.py, for the pieces. */
class Frame {
  /** @param {FrameFields} fields */
  constructor(fields) {
    this.fields = fields;
  }

  /** @param {number[]} dims @param {Box} box @returns {[number, number][]} */
  spans(dims, box) {
    /** @type {[number, number][]} */
    let spans = [[0, 1]];
    dims.forEach((dim, place) => {
      const [start, stop] = box[dim], size = Math.max(this.fields.shape[dim], 1);
      /** @type {[number, number][]} */
      let parts = [[start / size, stop / size]];
      if (place < dims.length - 1) {
        const layers = this.fields.layers[dim], count = layers.length - 1, gap = PLAN.gap;
        const step = 1 / (count + gap * (count - 1));
        parts = [];
        for (let number = 0; number < count; number++) {
          if (start < layers[number + 1] && stop > layers[number]) {
            parts.push([number * step * (1 + gap), number * step * (1 + gap) + step]);
          }
        }
      }
      spans = spans.flatMap(([low, high]) => parts.map(([first, last]) =>
        /** @type {[number, number]} */ ([low + (high - low) * first, low + (high - low) * last])));
    });
    return spans;
  }

  /** @param {Box} box @returns {[number, number, number, number][]} */
  rects(box) {
    const across = this.spans(this.fields.across, box);
    return this.spans(this.fields.down, box).flatMap(([top, bottom]) => across.map(([left, right]) =>
      /** @type {[number, number, number, number]} */ ([left, top, right - left, bottom - top])));
  }
}

/** The plan: its ends, its moves, and what each device holds in each frame. */
class PlanModel {
  /** @param {Int32Array[]} tileOf @param {Int32Array[]} received @param {Move[]} moves */
  constructor(tileOf, received, moves) {
    this.tileOf = tileOf;
    this.received = received;
    this.moves = moves;
    /** @type {number[]} */
    this.devices = PLAN.devices || Array.from({ length: PLAN.count }, (_, number) => number);
    /** @type {Map<number, number>} */
    this.place = new Map(this.devices.map((device, place) => [device, place]));
    /** @type {Set<number> | null} */
    this.sampled = PLAN.sampled ? new Set(PLAN.sampled) : null;
    /** @type {Turn[]} */
    this.turns = [{ move: -1, round: -1, label: "the source", ends: true }];
    this.incoming = moves.map((move) => this.rows(move.pieces[2]));
    this.outgoing = moves.map((move) => this.rows(move.pieces[1]));
    PLAN.steps.forEach((kind, step) => this.addTurns(kind, step));
  }

  /** @param {string} kind @param {number} step */
  addTurns(kind, step) {
    const numbers = this.moves.flatMap((move, number) => (move.step === step ? [number] : []));
    const head = `step ${step + 1} of ${PLAN.steps.length}, ${kind}`;
    if (!numbers.length) this.turns.push({ move: -1, round: step, label: `${head}: nothing is sent`, ends: true });
    numbers.forEach((number, place) => {
      const [rounds, senders, receivers] = this.moves[number].pieces;
      const last = place === numbers.length - 1;
      const part = numbers.length > 1 ? `, exchange ${place + 1} of ${numbers.length}` : "";
      const hops = this.moves[number].hops > 1 ? "hop" : "round";
      const found = new Set(rounds.filter((_, row) => senders[row] !== receivers[row]));
      const order = this.sampled || !found.size ? [-1] : [...found].sort((a, b) => a - b);
      order.forEach((round, turn) => {
        const label = round < 0 ? `${head}${part}` : `${head}${part}: ${hops} ${turn + 1} of ${order.length}`;
        this.turns.push({ move: number, round, label, ends: last && turn === order.length - 1 });
      });
    });
  }

  /** Per device, the rows of its pieces. @param {Int32Array} column @returns {Map<number, number[]>} */
  rows(column) {
    /** @type {Map<number, number[]>} */
    const rows = new Map();
    column.forEach((place, row) => {
      const list = rows.get(place);
      if (list) list.push(row);
      else rows.set(place, [row]);
    });
    return rows;
  }

  /** @param {Move} move @param {number} row @returns {Box} */
  box(move, row) {
    return PLAN.intervals.map((list, dim) =>
      list[move.pieces[3 + dim][row]]);
  }

  /** The boxes of a device's tile at one end of a step. @param {number} end @param {number} place @returns {Box[]} */
  tile(end, place) {
    const number = this.tileOf[end][place];
    return number < 0 ? [] : PLAN.tiles[end][number].map((ids) =>
      ids.map((id, dim) => PLAN.intervals[dim][id]));
  }

  /** Whether a piece comes only to be handed on. @param {Move} move @param {number} row */
  passes(move, row) {
    if (move.hops === 1) return false;
    const box = this.box(move, row);
    return !this.tile(move.step + 1, move.pieces[2][row]).some((held) =>
      box.every(([start, stop], dim) => held[dim][0] <= start && stop <= held[dim][1]));
  }

  /** The step that a turn belongs to, or -1 before the first. @param {number} frame */
  stepOf(frame) {
    const turn = this.turns[frame];
    return frame === 0 ? -1 : turn.move < 0 ? turn.round : this.moves[turn.move].step;
  }

  /**
   * What a device holds: what it had before the step, dim, and what has come, a part of it where more is added.
   * @param {number} frame @param {number} place
   * @returns {{box: Box, part: number, old: boolean, fresh: boolean}[]}
   */
  held(frame, place) {
    const turn = this.turns[frame], step = this.stepOf(frame);
    const whole = (/** @type {number} */ end, /** @type {boolean} */ old) =>
      this.tile(end, place).map((box) => ({ box, part: 1, old, fresh: false }));
    if (turn.move < 0 || (this.sampled && !this.sampled.has(place))) {
      return whole(turn.ends || turn.move < 0 ? step + 1 : step, false);
    }
    const move = this.moves[turn.move], [rounds, senders, receivers] = move.pieces;
    const rows = (this.incoming[turn.move].get(place) || []).filter((row) =>
      turn.round < 0 || rounds[row] <= turn.round || senders[row] === receivers[row]);
    /** @type {Map<string, {box: Box, part: number, old: boolean, fresh: boolean}>} */
    const pieces = new Map();
    for (const row of rows) {
      const box = this.box(move, row), key = boxText(box);
      if (rounds[row] !== turn.round && this.passes(move, row)) continue;
      const fresh = senders[row] !== receivers[row] && (turn.round < 0 || rounds[row] === turn.round);
      const known = pieces.get(key);
      if (known) {
        known.part += 1 / move.classes;
        known.fresh = known.fresh || fresh;
      } else pieces.set(key, { box, part: 1 / move.classes, old: false, fresh });
    }
    return [...(turn.ends ? [] : whole(step, true)), ...pieces.values()];
  }

  /** Per device, the part of its bytes that it has received. @param {number} frame @returns {Float64Array} */
  progress(frame) {
    const step = this.stepOf(frame), frames = this.turns.map((_, number) => number)
      .filter((number) => this.stepOf(number) === step);
    const part = (frames.indexOf(frame) + 1) / frames.length;
    return Float64Array.from(this.devices, (_, place) => {
      let done = 0, all = 0;
      this.received.forEach((column, number) => {
        all += column[place];
        done += column[place] * (number < step ? 1 : number === step ? part : 0);
      });
      return all ? done / all : 1;
    });
  }

  /** The rows of the pieces that travel in a frame. @param {number} frame */
  travelling(frame) {
    const turn = this.turns[frame];
    if (turn.move < 0) return [];
    const [rounds, senders, receivers] = this.moves[turn.move].pieces;
    /** @type {number[]} */
    const rows = [];
    rounds.forEach((round, row) => {
      if (senders[row] !== receivers[row] && (turn.round < 0 || round === turn.round)) rows.push(row);
    });
    return rows;
  }
}
