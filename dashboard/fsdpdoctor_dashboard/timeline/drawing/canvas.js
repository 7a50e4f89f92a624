// What is drawn on a canvas and belongs to no part of the timeline: patterns, text that
// fits, and the canvases as one picture.
(function (root) {
  "use strict";
  if (root.fsdpCanvas) return;
  const { FONT } = root.fsdpLayout;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {CanvasRenderingContext2DSettings} [options]
   * @returns {Pen}
   */
  function penOf(canvas, options) {
    const pen = canvas.getContext("2d", options);
    if (!pen) throw new Error("this browser draws nothing");
    return pen;
  }

  /**
   * A square, painted once, as a pattern that a pen can fill with.
   * @param {Pen} pen
   * @param {number} size
   * @param {(pen: Pen) => void} paint
   * @returns {CanvasPattern}
   */
  function pattern(pen, size, paint) {
    const square = document.createElement("canvas");
    square.width = square.height = size;
    paint(penOf(square));
    // Null only of an image that is still loading, and a canvas never is.
    return /** @type {CanvasPattern} */ (pen.createPattern(square, "repeat"));
  }

  /**
   * Diagonal lines.
   * @param {Pen} pen
   * @param {string} colour
   * @param {string} background
   * @param {number} size
   */
  function hatching(pen, colour, background, size) {
    return pattern(pen, size, (inner) => {
      inner.fillStyle = background;
      inner.fillRect(0, 0, size, size);
      inner.strokeStyle = colour;
      inner.lineWidth = Math.max(1, size / 6);
      inner.beginPath();
      for (const shift of [-size, 0, size]) {
        inner.moveTo(shift, size);
        inner.lineTo(shift + size, 0);
      }
      inner.stroke();
    });
  }

  /**
   * Dots: time in which a collective only waited for a rank.
   * @param {Pen} pen
   * @param {string} colour
   * @param {number} size
   */
  function dots(pen, colour, size) {
    return pattern(pen, size, (inner) => {
      inner.fillStyle = colour;
      inner.fillRect(size / 4, size / 4, size / 3, size / 3);
    });
  }

  /**
   * The text, shortened in the middle until it fits; "" where too little would be left.
   * @param {Pen} pen
   * @param {string} text
   * @param {number} room
   * @param {string} font its weight and size
   */
  function fitted(pen, text, room, font) {
    pen.font = `${font} ${FONT}`;
    if (text.length > 200) text = `${text.slice(0, 100)}\u2026${text.slice(-90)}`;
    if (pen.measureText(text).width <= room) return text;
    for (let keep = Math.min(text.length - 1, Math.floor(room / 4)); keep >= 6; keep--) {
      const head = Math.ceil(keep * 0.4);
      const short = `${text.slice(0, head)}\u2026${text.slice(text.length - (keep - head))}`;
      if (pen.measureText(short).width <= room) return short;
    }
    return "";
  }

  /**
   * The same of a unit, which rather goes without its model than without its middle.
   * @param {CanvasRenderingContext2D} pen
   * @param {string} unit
   * @param {number} room
   * @param {string} font
   */
  function unitFitted(pen, unit, room, font) {
    const whole = fitted(pen, unit, room, font);
    return whole === unit ? whole : fitted(pen, unit.split(" of ")[0], room, font);
  }

  /**
   * Canvases of one size, laid over each other, as a file.
   * @param {HTMLCanvasElement[]} canvases
   * @returns {Promise<Blob>}
   */
  function png(canvases) {
    const whole = document.createElement("canvas");
    whole.width = canvases[0].width;
    whole.height = canvases[0].height;
    const pen = penOf(whole);
    for (const canvas of canvases) pen.drawImage(canvas, 0, 0);
    return new Promise((resolve, reject) => {
      whole.toBlob((blob) => {
        if (blob) resolve(blob);
        else reject(new Error("the picture is too large to be saved"));
      }, "image/png");
    });
  }

  const api = { penOf, hatching, dots, fitted, unitFitted, png };
  root.fsdpCanvas = api;
  if (typeof module !== "undefined") module.exports = api;
})(window);
