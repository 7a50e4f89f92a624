// What is not known, and why: where a rank's record ends, and a run that shows no work.
(function (root) {
  "use strict";
  if (root.FsdpUnknown) return;
  const { Row } = root.fsdpTiles;
  const { GUTTER, FONT } = root.fsdpLayout;
  const END_WIDTH = 3; // of the line at which a rank ends
  const WORK = new Set([Row.EXPOSED, Row.COMPUTE, Row.ALL_GATHER, Row.REDUCE_SCATTER, Row.ALL_REDUCE,
    Row.OTHER_COMM, Row.COPIES]);

  class FsdpUnknown {
    /** @param {Timeline} timeline */
    constructor(timeline) {
      this.timeline = timeline;
    }

    // A rank whose record ends before the run does: nothing is known after it, which is
    // no idleness.
    ends() {
      const { timeline } = this;
      const pen = timeline.pen;
      const right = GUTTER + timeline.plot;
      timeline.clipPlot(timeline.top, timeline.bottom);
      for (const track of timeline.order) {
        const { ended } = track.info;
        if (!ended || !timeline.onScreen(track)) continue;
        const x = timeline.x(ended.at + track.offset), y = timeline.screenY(track.y);
        if (x > right || x < GUTTER - 2) {
          if (x < GUTTER) this.afterEnd(GUTTER, right, y, track.height);
          continue;
        }
        this.afterEnd(x, right, y, track.height);
        pen.fillStyle = timeline.ink.text;
        pen.fillRect(Math.round(x) - 1, y, END_WIDTH, track.height - 2);
        if (track.small) continue;
        const words = `${track.label}: ${ended.words}`;
        pen.font = `bold 11px ${FONT}`;
        const width = pen.measureText(words).width;
        const fits = x + width + 16 < right;
        const from = fits ? x + 6 : x - width - 12;
        pen.fillStyle = timeline.ink.text;
        pen.fillRect(from, y + track.height / 2 - 9, width + 8, 18);
        pen.fillStyle = timeline.ink.background;
        pen.textBaseline = "middle";
        pen.fillText(words, from + 4, y + track.height / 2 + 0.5);
      }
      pen.restore();
    }

    /**
     * @param {number} from
     * @param {number} to
     * @param {number} y
     * @param {number} height
     */
    afterEnd(from, to, y, height) {
      const { timeline } = this;
      timeline.pen.fillStyle = timeline.ink.panel;
      timeline.pen.fillRect(from, y + 1, to - from, height - 3);
    }

    // Why there is nothing to see, where there is not.
    nothing() {
      const { timeline } = this;
      const { pen, sources } = timeline;
      const live = sources.some((source) => source.meta.live);
      if (timeline.end <= 1) {
        this.words(live ? "No step has been recorded yet: it appears here once it has ended."
          : "The run holds no span to draw: no step was recorded to its end.", timeline.top, timeline.bottom);
      } else if (!sources.some(({ meta }) => meta.used.some((index) => WORK.has(meta.series[index].row)))) {
        const from = Math.min(timeline.screenY(timeline.content), timeline.bottom - 40);
        this.words("The record holds no compute and no collective, only what the host did.", from, timeline.bottom);
      }
      pen.textAlign = "left";
    }

    /**
     * @param {string} text
     * @param {number} top
     * @param {number} bottom
     */
    words(text, top, bottom) {
      const { timeline } = this;
      const { pen } = timeline;
      pen.font = `13px ${FONT}`;
      const lines = [""];
      for (const word of text.split(" ")) {
        const longer = lines[lines.length - 1] ? `${lines[lines.length - 1]} ${word}` : word;
        if (pen.measureText(longer).width < timeline.plot - 8 || longer === word) lines[lines.length - 1] = longer;
        else lines.push(word);
      }
      pen.fillStyle = timeline.ink.faint;
      pen.textAlign = "center";
      const first = (top + bottom) / 2 - (lines.length - 1) * 9;
      lines.forEach((line, at) => pen.fillText(line, GUTTER + timeline.plot / 2, first + at * 18));
    }
  }

  root.FsdpUnknown = FsdpUnknown;
  if (typeof module !== "undefined") module.exports = { FsdpUnknown };
})(window);
