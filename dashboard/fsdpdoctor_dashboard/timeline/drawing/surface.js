// What the timeline is painted on: two canvases and the words around them, their sizes
// and their colours.
(function (root) {
  "use strict";
  if (root.FsdpSurface) return;
  const { RowRaster } = root.fsdpRaster;
  const { penOf, hatching, dots, png } = root.fsdpCanvas;
  const { rgb } = root.fsdpFormat;
  const { inks, colours } = root.fsdpSettings;
  const { GUTTER } = root.fsdpLayout;

  class FsdpSurface {
    /** @param {HTMLElement} element */
    constructor(element) {
      this.element = element;
      element.classList.add("fd-timeline");
      element.textContent = "";
      this.bar = this.make("div", "fd-bar", element);
      this.stage = this.make("div", "fd-stage", element);
      this.stage.tabIndex = 0;
      this.stage.setAttribute("role", "application");
      this.stage.setAttribute("aria-label",
        "Timeline. W and S zoom, A and D pan, N goes to the next exposed stretch, ? lists all keys.");
      this.lower = this.make("canvas", "fd-canvas", this.stage);
      this.upper = this.make("canvas", "fd-canvas", this.stage);
      this.pen = penOf(this.lower, { alpha: false });
      this.over = penOf(this.upper);
      this.tip = this.make("div", "fd-tip", this.stage);
      this.tip.hidden = true;
      this.status = this.make("div", "fd-status", element);
      this.status.setAttribute("role", "status");
      this.status.setAttribute("aria-live", "polite");

      this.ratio = 1; // device pixels in one
      this.width = this.height = 0;
      this.plot = this.pixels = 1; // width without the gutter, in both
      this.raster = new RowRaster(1);

      /** @type {Theme} */
      this.theme = "light";
      this.ink = inks.light;
      this.colour = colours.light;
      /** @type {Record<string, number[]>} */
      this.rgb = {};
      /** @type {string | CanvasPattern} */
      this.hatch = "";
      /** @type {string | CanvasPattern} */
      this.dots = "";
    }

    /**
     * A new element within another one.
     * @template {keyof HTMLElementTagNameMap} Tag
     * @param {Tag} tag
     * @param {string} name its class
     * @param {HTMLElement} parent
     */
    make(tag, name, parent) {
      const node = document.createElement(tag);
      node.className = name;
      parent.appendChild(node);
      return node;
    }

    // The canvases take the room that there is now.
    measure() {
      const box = this.stage.getBoundingClientRect();
      this.ratio = root.devicePixelRatio || 1;
      this.width = Math.max(GUTTER + 50, box.width);
      this.height = Math.max(120, box.height);
      for (const canvas of [this.lower, this.upper]) {
        canvas.width = Math.round(this.width * this.ratio);
        canvas.height = Math.round(this.height * this.ratio);
        canvas.style.width = `${this.width}px`;
        canvas.style.height = `${this.height}px`;
      }
      this.plot = this.width - GUTTER - 6;
      this.pixels = Math.max(1, Math.round(this.plot * this.ratio));
      this.raster = new RowRaster(this.pixels);
    }

    /** @param {Theme} theme */
    dress(theme) {
      this.theme = theme;
      this.element.dataset.theme = theme;
      this.ink = inks[theme];
      this.colour = colours[theme];
      this.rgb = Object.fromEntries(Object.entries(this.colour).map(([key, hex]) => [key, rgb(hex)]));
      this.hatch = hatching(this.pen, this.ink.exposed, this.ink.exposed + "2e", 9);
      this.dots = dots(this.pen, this.ink.faint, 5);
    }

    /**
     * Until the pen is restored it paints nothing outside the plot.
     * @param {number} from
     * @param {number} to
     */
    clipPlot(from, to) {
      this.pen.save();
      this.pen.beginPath();
      this.pen.rect(GUTTER, from, this.plot, to - from);
      this.pen.clip();
    }

    png() {
      return png([this.lower, this.upper]);
    }

    // -- words

    /** @param {string} text */
    say(text) {
      this.status.textContent = this.status.title = text;
    }

    /** @param {unknown} error */
    sayError(error) {
      // fetch() itself fails with a TypeError: nobody answers there.
      if (error instanceof TypeError && /fetch|network|load/i.test(error.message)) {
        this.say("nobody answers: the dashboard has ended; `fsdpdoctor view` shows the run again");
      } else if (!(error instanceof Error)) this.say(String(error));
      else if (error.name !== "AbortError") this.say(error.message);
    }

    hideTip() {
      this.tip.hidden = true;
    }
  }

  root.FsdpSurface = FsdpSurface;
  if (typeof module !== "undefined") module.exports = { FsdpSurface };
})(window);
