// What a person marks on the timeline: stretches to come back to, kept in the address. M
// sets and removes, [ and ] go from one to the next.
(function (root) {
  "use strict";
  if (root.FsdpBookmarks) return;
  const format = root.fsdpFormat;
  const FONT = `10px ${root.fsdpLayout.FONT}`;
  const MOST = 50; // more would not fit an address

  class FsdpBookmarks {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
      /** @type {View[]} by start */
      this.list = [];
    }

    /**
     * What is marked: the area, the selected span, or the moment under the mouse.
     * @returns {View | null}
     */
    target() {
      const { area, selection, hover } = this.timeline;
      if (area) return { t0: area.t0, t1: area.t1 };
      const here = selection.stretch();
      if (here) return { t0: here.t0, t1: here.t1 };
      if (hover && hover.x >= root.fsdpLayout.GUTTER) {
        const at = Math.round(hover.time);
        return { t0: at, t1: at };
      }
      return null;
    }

    toggle() {
      const { timeline } = this;
      const found = this.target();
      if (!found) {
        timeline.say("nothing to mark: select a span or an area, or point at a moment");
        return;
      }
      const before = this.list.length;
      this.list = this.list.filter((bookmark) => bookmark.t0 !== found.t0 || bookmark.t1 !== found.t1);
      if (this.list.length === before) {
        if (before >= MOST) {
          timeline.say(`${MOST} marks are set: remove one first`);
          return;
        }
        this.list.push(found);
        this.list.sort((a, b) => a.t0 - b.t0 || a.t1 - b.t1);
        timeline.say(`marked ${format.duration(found.t1 - found.t0)}; [ and ] go from mark to mark`);
      } else timeline.say("mark removed");
      this.changed();
    }

    clear() {
      const { length } = this.list;
      this.list = [];
      this.timeline.say(length === 1 ? "1 mark removed" : `${length} marks removed`);
      this.changed();
    }

    changed() {
      this.timeline.redrawOver();
      this.timeline.address.viewChanged();
    }

    /** @param {boolean} forward */
    go(forward) {
      const { timeline } = this;
      const { t0, t1 } = timeline.view;
      const middle = (t0 + t1) / 2, slack = (t1 - t0) * 0.01;
      /** @param {View} bookmark */
      const centre = (bookmark) => (bookmark.t0 + bookmark.t1) / 2;
      const bookmark = forward
        ? this.list.find((n) => centre(n) > middle + slack)
        : [...this.list].reverse().find((n) => centre(n) < middle - slack);
      if (!bookmark) {
        timeline.say(this.list.length ? "no further mark that way" : "no mark is set: M sets one");
        return;
      }
      const width = t1 - t0;
      if (bookmark.t1 - bookmark.t0 > width * 0.8) timeline.jump(bookmark.t0, bookmark.t1);
      else timeline.setView(centre(bookmark) - width / 2, centre(bookmark) + width / 2);
    }

    // -- the address

    text() {
      return this.list.map((bookmark) => `${Math.round(bookmark.t0)}-${Math.round(bookmark.t1)}`).join(",");
    }

    /** @param {string | null} text */
    restore(text) {
      const found = (text || "").split(",").flatMap((part) => {
        const match = /^(-?\d+)-(-?\d+)$/.exec(part);
        return match ? [{ t0: Number(match[1]), t1: Number(match[2]) }] : [];
      });
      this.list = found.filter(({ t0, t1 }) => t1 >= t0).slice(0, MOST);
    }

    // -- painting, over the lanes: dashed edges and a flag at the top

    /**
     * @param {Pen} pen
     * @param {number} top
     * @param {number} height
     */
    paint(pen, top, height) {
      const { timeline } = this;
      const left = root.fsdpLayout.GUTTER, right = left + timeline.plot;
      pen.save();
      pen.strokeStyle = pen.fillStyle = timeline.ink.select;
      pen.lineWidth = 1.5;
      /** @type {number[]} of the words in each line, so that none lie over others */
      const ends = [];
      this.list.forEach((bookmark, at) => {
        const x0 = timeline.x(bookmark.t0), x1 = timeline.x(bookmark.t1);
        if (x1 < left || x0 > right) return;
        pen.setLineDash([5, 4]);
        pen.beginPath();
        for (const x of bookmark.t1 > bookmark.t0 ? [x0, x1] : [x0]) {
          pen.moveTo(x, top);
          pen.lineTo(x, height);
        }
        pen.stroke();
        pen.setLineDash([]);
        pen.fillRect(Math.max(left, x0), top, Math.max(2, Math.min(right, x1) - Math.max(left, x0)), 3);
        const length = bookmark.t1 > bookmark.t0 ? `, ${format.duration(bookmark.t1 - bookmark.t0)}` : "";
        const text = `mark ${at + 1}${length}`;
        const from = Math.max(left, x0) + 5;
        let line = ends.findIndex((end) => end < from);
        if (line < 0) line = ends.length;
        pen.font = FONT;
        ends[line] = from + pen.measureText(text).width + 10;
        timeline.overlay.tag(pen, text, from, top + 11 + line * 17);
        pen.fillStyle = timeline.ink.select;
      });
      pen.restore();
    }
  }

  root.FsdpBookmarks = FsdpBookmarks;
  if (typeof module !== "undefined") module.exports = { FsdpBookmarks };
})(window);
