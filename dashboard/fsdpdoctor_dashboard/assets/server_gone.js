// Says on every page when nobody answers any more. A page that goes on as if nothing
// had happened shows old figures as answers to new questions.
(function () {
  "use strict";
  const ASK_MS = 4000;
  const WORDS = "The dashboard has ended: nobody answers at this address. What is shown is "
    + "what it said last. Look again with: fsdpdoctor view, and the run's folder";
  const base = /** @type {HTMLElement | null} */ (document.querySelector("script[data-base]"))
    ?.dataset.base || "/";
  const ask = window.fetch.bind(window);
  let gone = false;
  // The address whose page is shown: a click may have changed it before the silence.
  let shown = window.location.href;

  /** @param {boolean} now */
  function say(now) {
    if (now === gone) return;
    gone = now;
    document.documentElement.classList.toggle("gone", gone);
    // What nobody would answer is not to be asked: the knobs stay as what is shown.
    for (const part of document.querySelectorAll("#nav, #runs, .whatif")) {
      part.toggleAttribute("inert", gone);
    }
    document.getElementById("gone")?.remove();
    if (!gone) {
      if (new URL(shown).pathname !== window.location.pathname) window.location.reload();
      return;
    }
    if (new URL(shown).pathname !== window.location.pathname) {
      window.history.replaceState(window.history.state, "", shown);
    }
    const alert = document.createElement("div");
    alert.id = "gone";
    alert.setAttribute("role", "alert");
    alert.textContent = WORDS;
    document.body.append(alert);
  }

  /**
   * A view beside a training that has ended stays while its pages are open, and not for ever.
   * @param {number | null} seconds
   */
  function sayEnding(seconds) {
    const place = document.getElementById("ending");
    if (!place || seconds === null) return;
    const until = new Date(Date.now() + seconds * 1000);
    const time = until.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    const words = `Training has ended: this view stays while it is open, at most until ${time}`;
    if (place.textContent !== words) place.textContent = words;
  }

  /** @param {unknown} error */
  const isSilence = (error) => error instanceof TypeError; // fetch()'s own

  window.fetch = async (...given) => {
    try {
      const answer = await ask(...given);
      say(false);
      return answer;
    } catch (error) {
      // One that fails may be a page being left: a second question tells.
      if (isSilence(error)) look();
      throw error;
    }
  };

  async function look() {
    try {
      const answer = await ask(`${base}alive`, { cache: "no-store" });
      say(false);
      if (answer.ok) sayEnding((await answer.json()).left_s);
    } catch (error) {
      if (isSilence(error)) say(true);
    }
  }

  // Links and buttons that ask the server lead nowhere: what is shown would stay, under
  // another page's address.
  const ASKS = "#page a[href], #brand, #compare, #save-plan";
  document.addEventListener("click", (event) => {
    if (!gone || !(event.target instanceof Element) || !event.target.closest(ASKS)) return;
    event.preventDefault();
    event.stopPropagation();
  }, true);

  // Dash puts a page into #page: from then on the address is its own.
  new MutationObserver((changes) => {
    const page = document.getElementById("page");
    if (!gone && changes.some((change) => page?.contains(change.target))) {
      shown = window.location.href;
    }
  }).observe(document.documentElement, { childList: true, subtree: true });
  // In the background too: who does not ask is taken to have left.
  setInterval(look, ASK_MS);
  look();
  window.addEventListener("pagehide", () => navigator.sendBeacon(`${base}left`));
})();
