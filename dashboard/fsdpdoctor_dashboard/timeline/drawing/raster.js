// The row raster: all slices of a row become one line of pixels, which one drawImage
// stretches to the row's height. So a frame costs pixels and not slices. A pixel's
// strength is the share of its time that was busy: the overview does not lie.
(function (root) {
  "use strict";
  const tiles = typeof module !== "undefined" ? require("../data/tiles.js") : root.fsdpTiles;
  const { BINS, NO_UNIT, TO_RIGHT } = tiles;

  // A slice at least this wide, in device pixels, gets sharp edges and a gap behind it.
  const SHARP = 3;
  // An exposed stretch is never fainter than this, however small its share of a pixel.
  const EXPOSED_FLOOR = 0.62;

  class RowRaster {
    /** @param {number} width */
    constructor(width) {
      this.width = width;
      this.sums = new Float32Array(width * 4); // r, g, b, share
    }

    clear() {
      this.sums.fill(0);
    }

    /**
     * One block of a tile over the pixels [first, last). `t0` and `perPixel` say which
     * time a pixel stands for; `wide` is called for each slice with room for more.
     * @param {Tile} tile
     * @param {Block} block
     * @param {number[]} colour
     * @param {number} first
     * @param {number} last
     * @param {number} t0
     * @param {number} perPixel
     * @param {(slice: RasterSlice) => void} wide
     */
    block(tile, block, colour, first, last, t0, perPixel, wide) {
      if (block.shares) {
        this.bins(tile, block, colour, first, last, t0, perPixel);
      } else {
        this.slices(tile, block, colour, first, last, t0, perPixel, wide);
      }
    }

    /**
     * @param {Tile} tile
     * @param {BinsBlock} block
     * @param {number[]} colour
     * @param {number} first
     * @param {number} last
     * @param {number} t0
     * @param {number} perPixel
     */
    bins(tile, block, [r, g, b], first, last, t0, perPixel) {
      const { sums } = this, { shares } = block;
      const bin = tile.width / BINS;
      const step = perPixel / bin;
      let at = (t0 + first * perPixel - tile.start) / bin;
      for (let pixel = first; pixel < last; pixel++, at += step) {
        const low = Math.max(0, Math.floor(at));
        const high = Math.min(BINS, Math.max(low + 1, Math.floor(at + step)));
        let sum = 0;
        for (let i = low; i < high; i++) sum += shares[i];
        if (sum > 0) {
          const share = sum / (255 * (high - low)), out = pixel * 4;
          sums[out] += r * share;
          sums[out + 1] += g * share;
          sums[out + 2] += b * share;
          sums[out + 3] += share;
        }
      }
    }

    /**
     * Runs of bins that were busy from end to end: of a crowd of slices, those that a
     * person sees as one stretch. `wide` is called as for slices, without span and unit.
     * @param {Tile} tile
     * @param {BinsBlock} block
     * @param {number} first
     * @param {number} last
     * @param {number} t0
     * @param {number} perPixel
     * @param {(slice: RasterSlice) => void} wide
     */
    runs(tile, block, first, last, t0, perPixel, wide) {
      const bin = tile.width / BINS;
      /** @param {number} at */
      const pixel = (at) => Math.min(last, Math.max(first, (tile.start + at * bin - t0) / perPixel));
      const { shares } = block;
      for (let at = 0; at < BINS; at++) {
        if (shares[at] < 255) continue;
        const begin = at;
        while (at < BINS && shares[at] === 255) at++;
        const from = pixel(begin), to = pixel(at);
        if (to - from >= SHARP) wide({ series: block.series, span: -1, from, to, unit: -1 });
      }
    }

    /**
     * Thousands of slices a frame: most are thinner than a few pixels, and those take
     * this loop and no call.
     * @param {Tile} tile
     * @param {SlicesBlock} block
     * @param {number[]} colour
     * @param {number} first
     * @param {number} last
     * @param {number} t0
     * @param {number} perPixel
     * @param {(slice: RasterSlice) => void} wide
     */
    slices(tile, block, colour, first, last, t0, perPixel, wide) {
      const { sums } = this, { from, to, count } = block;
      const [r, g, b] = colour;
      const scale = tile.width / 65536 / perPixel, shift = (tile.start - t0) / perPixel;
      for (let i = 0; i < count; i++) {
        const start = shift + from[i] * scale, end = shift + to[i] * scale;
        if (end <= first || start >= last) continue;
        if (end - start >= SHARP) {
          this.sharp(block, i, colour, first, last, start, end, wide);
          continue;
        }
        const begin = start > first ? start : first, stop = end < last ? end : last;
        for (let pixel = begin | 0; pixel < stop; pixel++) {
          const share = (stop < pixel + 1 ? stop : pixel + 1) - (begin > pixel ? begin : pixel);
          const out = pixel * 4;
          sums[out] += r * share;
          sums[out + 1] += g * share;
          sums[out + 2] += b * share;
          sums[out + 3] += share;
        }
      }
    }

    /**
     * @param {SlicesBlock} block
     * @param {number} i
     * @param {number[]} colour
     * @param {number} first
     * @param {number} last
     * @param {number} start
     * @param {number} end
     * @param {(slice: RasterSlice) => void} wide
     */
    sharp(block, i, [r, g, b], first, last, start, end, wide) {
      const { sums } = this;
      const from = Math.max(first, Math.round(start));
      const to = Math.min(last, Math.round(end));
      const gap = block.edges[i] & TO_RIGHT || to >= last ? 0 : 1;
      for (let out = from * 4; out < (to - gap) * 4; out += 4) {
        sums[out] += r;
        sums[out + 1] += g;
        sums[out + 2] += b;
        sums[out + 3] += 1;
      }
      const unit = block.unit[i];
      wide({
        series: block.series, span: block.span[i], from: start, to: end,
        unit: unit === NO_UNIT ? -1 : unit,
      });
    }

    /**
     * Into a line of an ImageData.
     * @param {ImageData} image
     * @param {number} line
     * @param {boolean} exposed
     */
    write(image, line, exposed) {
      const data = image.data;
      let out = line * this.width * 4;
      for (let at = 0; at < this.sums.length; at += 4, out += 4) {
        const share = this.sums[at + 3];
        if (share <= 0) {
          data[out + 3] = 0;
          continue;
        }
        data[out] = this.sums[at] / share;
        data[out + 1] = this.sums[at + 1] / share;
        data[out + 2] = this.sums[at + 2] / share;
        const shown = Math.min(1, share);
        data[out + 3] = 255 * (exposed ? Math.max(EXPOSED_FLOOR, shown) : shown);
      }
    }
  }

  const api = { RowRaster };
  if (typeof module !== "undefined") module.exports = api;
  else root.fsdpRaster = root.fsdpRaster || api;
})(typeof window === "undefined" ? globalThis : window);
