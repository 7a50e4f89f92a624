// Small things of the pages: the theme, tables that sort, filter and save, menus. No
// names are ever written as HTML.
(function () {
  "use strict";
  // Only a click is remembered: until then the system decides.
  const KEY = "fsdpdoctor.theme";
  /** @returns {Theme} */
  const preferred = () => {
    try {
      const kept = localStorage.getItem(KEY);
      if (kept === "dark" || kept === "light") return kept;
    } catch { /* no storage */ }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  const own = /** @type {HTMLElement | null} */ (document.querySelector("script[data-base]"));
  // For the server, which sends the first page in it: see first_page.py.
  /** @param {Theme} theme */
  const tell = (theme) => {
    let how = "-by-system";
    try {
      if (localStorage.getItem(KEY) === theme) how = "";
    } catch { /* no storage */ }
    document.cookie = `fsdpdoctor-theme=${theme}${how}; path=${own?.dataset.base || "/"}; samesite=strict`;
  };
  document.documentElement.dataset.theme = preferred();
  tell(preferred());

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fsdpdoctor: {
      /**
       * @param {number | undefined} clicks
       * @param {Theme | undefined} now
       * @returns {Theme}
       */
      theme(clicks, now) {
        const before = now || preferred();
        if (!clicks) return before;
        const next = before === "dark" ? "light" : "dark";
        try {
          localStorage.setItem(KEY, next);
        } catch { /* no storage: it lasts as long as the page */ }
        document.documentElement.dataset.theme = next;
        tell(next);
        if (window.fsdpTimeline && !window.fsdpTimeline.gone) window.fsdpTimeline.setTheme(next);
        return next;
      },
    },
  });

  /**
   * @param {HTMLTableRowElement} row
   * @param {number} at
   */
  const cellValue = (row, at) => {
    const cell = row.cells[at];
    const given = cell.dataset.value;
    if (given === undefined) return cell.textContent || "";
    return given === "" ? -Infinity : Number(given);
  };

  /**
   * @param {HTMLTableElement} table
   * @param {Order} order
   */
  function sort(table, { at, up }) {
    const heads = [...table.querySelectorAll("th")];
    heads.forEach((th) => th.removeAttribute("aria-sort"));
    heads[at]?.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const x = cellValue(a, at), y = cellValue(b, at);
      const order = typeof x === "number" && typeof y === "number"
        ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  }

  /** @param {HTMLTableCellElement} head */
  function sortBy(head) {
    const table = head.closest("table");
    if (!table) return;
    const order = {
      at: head.cellIndex, up: head.getAttribute("aria-sort") === "descending",
    };
    sort(table, order);
    table.dispatchEvent(new CustomEvent("fsdp-sorted", { bubbles: true, detail: order }));
  }

  /**
   * @param {string | undefined} id
   * @returns {HTMLTableElement | null}
   */
  function tableOf(id) {
    const found = document.getElementById(id || "");
    return found instanceof HTMLTableElement ? found : null;
  }

  /** @param {HTMLInputElement} input */
  function filter(input) {
    const holder = input.closest("[data-filter-for]");
    const table = holder instanceof HTMLElement && tableOf(holder.dataset.filterFor);
    if (!table) return;
    const text = input.value.toLowerCase();
    for (const row of table.tBodies[0].rows) {
      const searched = table.id === "runs-table" ? row : row.cells[0];
      row.hidden = !(searched.textContent || "").toLowerCase().includes(text);
    }
  }

  // Quoted, and never a formula: a spreadsheet runs cells that begin with = + - @.
  /** @param {string} text */
  const field = (text) => {
    const safe = /^[=+\-@\t]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };

  // A number is saved as it was counted, its unit in the head; what was not measured is
  // an empty cell, so that a column of numbers stays one.
  /** @param {HTMLTableCellElement} cell */
  const saved = (cell) => {
    const text = cell.dataset.value ?? cell.dataset.saved ?? cell.textContent ?? "";
    return text === "-" ? "" : text;
  };

  /** @param {HTMLElement} button */
  function csv(button) {
    const table = tableOf(button.dataset.csv);
    if (!table) return;
    const lines = [...table.rows].filter((row) => !row.hidden).map((row) =>
      [...row.cells].map((cell) => field(saved(cell))).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\r\n")], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  /**
   * The code of an id, or the one beside the button. Without https a browser gives no
   * clipboard but to 127.0.0.1: then the code is selected, ready for Ctrl+C.
   * @param {HTMLElement} button
   */
  async function copy(button) {
    const code = button.dataset.copy
      ? document.getElementById(button.dataset.copy) : button.parentElement?.querySelector("pre");
    if (!code) return;
    try {
      await navigator.clipboard.writeText(code.textContent || "");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection()?.selectAllChildren(code);
    }
  }

  const MENUS = "header .runs details[open]";

  /**
   * The element itself or the nearest one around it.
   * @template {HTMLElement} Kind
   * @param {Event} event
   * @param {string} selector
   * @param {new () => Kind} kind
   * @returns {Kind | null}
   */
  function around(event, selector, kind) {
    const found = event.target instanceof Element ? event.target.closest(selector) : null;
    return found instanceof kind ? found : null;
  }

  document.addEventListener("click", (event) => {
    const head = around(event, "th[data-sort]", HTMLTableCellElement);
    if (head) sortBy(head);
    for (const menu of document.querySelectorAll(MENUS)) {
      const inside = event.target instanceof Node && menu.contains(event.target);
      const chosen = inside && event.target instanceof Element && event.target.closest("a");
      if (!inside || chosen) menu.removeAttribute("open");
    }
    const saver = around(event, "[data-csv]", HTMLElement);
    if (saver) csv(saver);
    const copier = around(event, "[data-copy]", HTMLElement);
    if (copier) copy(copier);
  });
  document.addEventListener("input", (event) => {
    if (event.target instanceof HTMLInputElement) filter(event.target);
  });
  document.addEventListener("keydown", (event) => {
    const head = around(event, "th[data-sort]", HTMLTableCellElement);
    if (head && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      sortBy(head);
    }
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll(MENUS)) {
      if (menu.contains(document.activeElement)) menu.querySelector("summary")?.focus();
      menu.removeAttribute("open");
    }
  });
  window.fsdpPage = { sort, filter };
})();
