// What a careful person would see at once on a page: texts over each other, texts that
// are cut, and things that do not fit. An expression: a list of sentences.
(() => {
  "use strict";
  /** @type {string[]} */
  const found = [];
  /** @param {Element} node */
  const seen = (node) => {
    const style = getComputedStyle(node);
    return style.visibility !== "hidden" && style.opacity !== "0" && node.getClientRects().length > 0;
  };
  /** @param {Element} node */
  const words = (node) => (node.textContent || "").trim().slice(0, 60);

  if (document.documentElement.scrollWidth > innerWidth) {
    found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  }
  // A narrow window may scroll a wide table, whose first column then stays.
  const narrow = innerWidth < 1440;
  for (const box of document.querySelectorAll(".scroll, nav, .fd-details, .side")) {
    if (narrow && box.matches(".scroll")) continue;
    if (seen(box) && box.scrollWidth > box.clientWidth + 1) {
      found.push(`${box.className || box.tagName} scrolls sideways: ${box.scrollWidth} in ${box.clientWidth}: ${words(box)}`);
    }
  }
  // Only what ends in three dots by intent may hide a part of itself, with all of it
  // in its title.
  for (const node of document.querySelectorAll("header *, main *")) {
    if (!(node instanceof HTMLElement) || !node.textContent || !seen(node)) continue;
    const style = getComputedStyle(node);
    const cut = node.scrollWidth > node.clientWidth + 1 && style.overflowX === "hidden" && node.clientWidth > 0;
    if (!cut || node.querySelector("canvas, svg") || node.closest(".fd-host canvas")) continue;
    if (style.textOverflow === "ellipsis" && node.title) continue;
    if (node.matches(".unseen")) continue; // for those who hear the page
    found.push(`cut: ${words(node)} (${node.className || node.tagName})`);
  }
  // Leaves that hold text, with the box of the glyphs.
  /** @typedef {{box: {left: number, right: number, top: number, bottom: number}, text: string, parent: Element}} Leaf */
  /** @type {Leaf[]} */
  const leaves = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = /** @type {Text} */ (walker.currentNode);
    const parent = text.parentElement;
    if (!parent || !text.data.trim() || parent.closest("script, style, [hidden], .fd-tip, option, .hoverlayer")) continue;
    if (!seen(parent) || parent.closest("details:not([open]) > :not(summary)")) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const box of range.getClientRects()) {
      if (box.width > 1 && box.height > 1) leaves.push({ box, text: text.data.trim().slice(0, 40), parent });
    }
  }
  // What is seen of a text: its box within all boxes that cut it off.
  /**
   * @param {Leaf} leaf
   * @returns {Leaf}
   */
  const visible = ({ box, text, parent }) => {
    let { left, right, top, bottom } = box;
    for (let node = /** @type {Element | null} */ (parent); node && node !== document.body; node = node.parentElement) {
      if (node instanceof SVGElement || getComputedStyle(node).overflow === "visible") continue;
      const outer = node.getBoundingClientRect();
      left = Math.max(left, outer.left);
      right = Math.min(right, outer.right);
      top = Math.max(top, outer.top);
      bottom = Math.min(bottom, outer.bottom);
    }
    return { box: { left, right, top, bottom }, text, parent };
  };
  const shown = leaves.map(visible)
    .filter(({ box }) => box.right - box.left > 1 && box.bottom - box.top > 1);
  shown.sort((a, b) => a.box.top - b.box.top);
  for (let i = 0; i < shown.length; i++) {
    const a = shown[i];
    if (a.box.right > innerWidth + 1 && !a.parent.closest(".scroll")) found.push(`beyond the window: ${a.text}`);
    for (let j = i + 1; j < shown.length; j++) {
      const b = shown[j];
      if (b.box.top > a.box.bottom) break;
      if (b.parent === a.parent) continue; // lines of one text
      const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (wide > 2 && high > 4) found.push(`overlap: "${a.text}" and "${b.text}"`);
    }
  }
  return found;
})()
