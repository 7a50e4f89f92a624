// Small things of the pages: the theme, tables that sort, filter and save, and links
// that move the timeline. No names are ever written as HTML.
(function () {
  "use strict";
  // Only a click is remembered: until then the system decides.
  const KEY = "fsdpdoctor.theme";
  const preferred = () => {
    try {
      const kept = localStorage.getItem(KEY);
      if (kept === "dark" || kept === "light") return kept;
    } catch { /* no storage */ }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  document.documentElement.dataset.theme = preferred();

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fsdpdoctor: {
      theme(clicks, now) {
        const before = now || preferred();
        if (!clicks) return before;
        const next = before === "dark" ? "light" : "dark";
        try {
          localStorage.setItem(KEY, next);
        } catch { /* no storage: it lasts as long as the page */ }
        document.documentElement.dataset.theme = next;
        if (window.fsdpTimeline && !window.fsdpTimeline.gone) window.fsdpTimeline.setTheme(next);
        return next;
      },
    },
  });

  const cellValue = (row, at) => {
    const cell = row.cells[at];
    const given = cell.dataset.value;
    if (given === undefined) return cell.textContent;
    return given === "" ? -Infinity : Number(given);
  };

  function sortBy(head) {
    const table = head.closest("table");
    const at = head.cellIndex;
    const up = head.getAttribute("aria-sort") === "descending";
    table.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const x = cellValue(a, at), y = cellValue(b, at);
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  }

  function filter(input, name) {
    const table = document.getElementById(name);
    const text = input.value.toLowerCase();
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(text);
    }
  }

  // Quoted, and never a formula: a spreadsheet runs cells that begin with = + - @.
  const field = (text) => {
    const safe = /^[=+\-@\t]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };

  function csv(button) {
    const table = document.getElementById(button.dataset.csv);
    const lines = [...table.rows].filter((row) => !row.hidden).map((row) =>
      [...row.cells].map((cell) => field(cell.dataset.value || cell.textContent)).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\r\n")], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // The code of an id, or the one beside the button. Without https a browser gives no
  // clipboard but to 127.0.0.1: then the code is selected, ready for Ctrl+C.
  async function copy(button) {
    const code = button.dataset.copy
      ? document.getElementById(button.dataset.copy) : button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection().selectAllChildren(code);
    }
  }

  document.addEventListener("click", (event) => {
    const head = event.target.closest("th[data-sort]");
    if (head) sortBy(head);
    const saver = event.target.closest("[data-csv]");
    if (saver) csv(saver);
    const copier = event.target.closest("[data-copy]");
    if (copier) copy(copier);
    const jump = event.target.closest("[data-jump]");
    if (jump && window.fsdpTimeline && !window.fsdpTimeline.gone) {
      const [rank, t0, t1] = jump.dataset.jump.split(",").map(Number);
      const timeline = window.fsdpTimeline;
      timeline.jump(t0, t1, timeline.track(rank, jump.dataset.run));
      timeline.stage.focus();
    }
  });
  document.addEventListener("input", (event) => {
    const holder = event.target.closest("[data-filter-for]");
    if (holder) filter(event.target, holder.dataset.filterFor);
  });
})();
