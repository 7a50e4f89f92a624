// What-if: a row or a point sets the knobs, the knobs set the address, and holding H
// makes the step glide from how it was to how it is predicted.
(function () {
  "use strict";
  const GLIDE_MS = 300, LANE = 24, GAP = 5, LEFT = 110, KEY = "h";

  /** @typedef {{ set_props?: (id: string, changed: Record<string, unknown>) => void }} DashInPage */
  /** @typedef {{ plan: string, values: Record<string, unknown>, rest: unknown[] }} Setting */
  /**
   * @typedef {{ now: number, then: number, marks: number[][], rows: [number, string][],
   *   series: [number, string][], exposed: number, compute: number }} Steps
   */
  const KNOBS = [
    "forward_prefetch", "backward_prefetch", "reshard", "merge", "switches", "param_dtype",
    "reduce_dtype", "accumulation", "replicate", "world_size", "micro_batches", "bandwidth", "rest",
  ];
  /** @type {Setting} */
  const NOTHING = { plan: "", values: { forward_prefetch: -1, backward_prefetch: -1, switches: [], rest: [] }, rest: [] };

  /** @param {Setting} setting */
  function set(setting) {
    const { set_props: setProps } = /** @type {DashInPage} */ (window.dash_clientside || {});
    setProps?.("whatif-set", { data: setting });
    document.querySelector(".whatif")?.scrollIntoView({ block: "start" });
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fsdpdoctorPlans: {
      /** @param {Setting | null} setting */
      knobs(setting) {
        const { values, rest } = setting || NOTHING;
        return [...KNOBS.map((name) => (name in values ? values[name] : null)), rest];
      },
      /** @param {string | null} plan */
      address(plan) {
        if (plan === null || plan === undefined) return null;
        const query = new URLSearchParams(window.location.search);
        if (plan) query.set("plan", plan);
        else query.delete("plan");
        window.history.replaceState(window.history.state, "", `${window.location.pathname}?${query}`);
        choose(plan);
        return plan;
      },
    },
  });

  let chosen = "";
  // The row whose plan the knobs ask for is the pressed one.
  /** @param {string} plan */
  function choose(plan) {
    chosen = plan;
    for (const row of document.querySelectorAll("#front [data-plan]")) {
      if (!(row instanceof HTMLElement)) continue;
      const its = JSON.parse(row.dataset.plan || "{}").plan;
      row.setAttribute("aria-pressed", String(its === chosen));
    }
  }

  /** @param {EventTarget | null} target */
  const isTypedIn = (target) => target instanceof HTMLElement
    && (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable);

  document.addEventListener("click", (event) => {
    const { target } = event;
    if (!(target instanceof Element) || document.documentElement.classList.contains("gone")) return;
    const row = target.closest("[data-plan]");
    if (row instanceof HTMLElement) set(JSON.parse(row.dataset.plan || "null"));
    if (target.closest("#reset-plan")) set(NOTHING);
  });

  // -- the two steps

  /** @param {HTMLCanvasElement} canvas */
  const stepsOf = (canvas) => /** @type {Steps} */ (JSON.parse(canvas.dataset.marks || "{}"));
  /** @type {WeakMap<HTMLCanvasElement, { steps: Steps, share: number, goal: number, frame: number }>} */
  const drawn = new WeakMap();

  /** @param {number} ns */
  const words = (ns) => `${(ns / 1e6).toPrecision(4)} ms`;

  /** @param {HTMLCanvasElement} canvas */
  function paint(canvas) {
    const state = drawn.get(canvas), pen = canvas.getContext("2d");
    if (!state || !pen) return;
    const { steps, share } = state;
    const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
    const ink = window.fsdpSettings.inks[theme], colours = window.fsdpSettings.colours[theme];
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 600;
    const height = steps.rows.length * (LANE + GAP) + GAP;
    canvas.style.height = `${height}px`;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const scale = (width - LEFT - 8) / Math.max(steps.now, steps.then, 1);
    /** @type {Map<number, number>} */
    const tops = new Map();
    pen.font = "12px system-ui, sans-serif";
    steps.rows.forEach(([row, name], at) => {
      const y = GAP + at * (LANE + GAP);
      tops.set(row, y);
      pen.fillStyle = ink.lane;
      pen.fillRect(LEFT, y, width - LEFT - 8, LANE);
      pen.fillStyle = ink.faint;
      pen.fillText(name, 4, y + LANE * 0.68);
    });
    // Exposed time over what stands still for it.
    for (const late of [false, true]) {
      for (const mark of steps.marks) {
        const [row, colour] = steps.series[mark[0]];
        if ((row === steps.exposed) !== late) continue;
        const y = tops.get(late ? steps.compute : row);
        if (y === undefined) continue;
        const there = mark[2] >= 0, then = mark[4] >= 0;
        const from = there ? mark[1] : mark[3], to = then ? mark[3] : mark[1];
        const long = there ? mark[2] : mark[4], longer = then ? mark[4] : mark[2];
        pen.globalAlpha = (there ? 1 - share : 0) + (then ? share : 0);
        pen.fillStyle = late ? ink.exposed : colours[colour] || ink.faint;
        const x = LEFT + (from + (to - from) * share) * scale;
        pen.fillRect(x, late ? y + LANE * 0.6 : y, Math.max(0.5, (long + (longer - long) * share) * scale),
          late ? LANE * 0.4 : LANE);
      }
    }
    pen.globalAlpha = 1;
    const end = steps.now + (steps.then - steps.now) * share;
    pen.fillStyle = ink.text;
    pen.fillRect(LEFT + end * scale, 0, 1.5, height);
    const status = canvas.parentElement?.querySelector(".morph-now");
    const what = share === 0 ? "as it was" : share === 1 ? "with the change" : "on the way";
    if (status) status.textContent = `${what}: ${words(end)}`;
  }

  /** @param {HTMLCanvasElement} canvas */
  function glide(canvas) {
    const state = drawn.get(canvas);
    if (!state || state.frame) return;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    let before = performance.now();
    /** @param {number} now */
    const frame = (now) => {
      const by = still ? 1 : (now - before) / GLIDE_MS;
      before = now;
      const { goal } = state;
      state.share = goal > state.share ? Math.min(goal, state.share + by) : Math.max(goal, state.share - by);
      paint(canvas);
      state.frame = state.share === state.goal || !canvas.isConnected ? 0 : requestAnimationFrame(frame);
    };
    state.frame = requestAnimationFrame(frame);
  }

  /** @param {number} goal */
  function hold(goal) {
    for (const canvas of document.querySelectorAll(".morph canvas")) {
      const state = canvas instanceof HTMLCanvasElement && drawn.get(canvas);
      if (!state || state.goal === goal) continue;
      state.goal = goal;
      glide(/** @type {HTMLCanvasElement} */ (canvas));
    }
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTypedIn(event.target)) return;
    const pressed = event.target instanceof Element && event.target.closest("[data-hold]");
    if (event.key.toLowerCase() === KEY || (pressed && (event.key === " " || event.key === "Enter"))) hold(1);
  });
  document.addEventListener("keyup", () => hold(0));
  document.addEventListener("pointerdown", (event) => {
    if (event.target instanceof Element && event.target.closest("[data-hold], .morph canvas")) hold(1);
  });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => hold(0));
  window.addEventListener("blur", () => hold(0));

  /** @typedef {HTMLElement & { on: (name: string, heard: (click: { points: { customdata?: unknown[] }[] }) => void) => void }} Graph */
  /** @type {WeakSet<Element>} */
  const heard = new WeakSet();

  function look() {
    for (const canvas of document.querySelectorAll(".morph canvas")) {
      if (!(canvas instanceof HTMLCanvasElement) || drawn.has(canvas)) continue;
      drawn.set(canvas, { steps: stepsOf(canvas), share: 0, goal: 0, frame: 0 });
      paint(canvas);
    }
    for (const graph of document.querySelectorAll(".plan-front .js-plotly-plot")) {
      if (heard.has(graph) || !("on" in graph)) continue;
      heard.add(graph);
      /** @type {Graph} */ (/** @type {unknown} */ (graph)).on("plotly_click", ({ points }) => {
        const given = points[0]?.customdata?.[0];
        if (typeof given === "string") set(JSON.parse(given));
      });
    }
    const first = document.querySelector("#front [data-plan]");
    if (first && !first.hasAttribute("aria-pressed")) choose(chosen);
  }

  window.addEventListener("resize", () => {
    for (const canvas of document.querySelectorAll(".morph canvas")) {
      if (canvas instanceof HTMLCanvasElement) paint(canvas);
    }
  });
  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true });
})();
