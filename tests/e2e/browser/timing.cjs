// Steps that measure when a person sees something, by the page's own clock.
'use strict';

const LIMIT = { timeout: 60000 };
const CARD = '.jp-Singularity-card';
const LINE = '.jp-Singularity-link';
const SPLASH = '#jupyterlab-splash';

// When the page shows all that is wanted, each a selector and a text, and nothing that is to be
// `gone`: ms since 1970, after the frame in which that is so.
const when = (page, wanted, gone = '') =>
  page.evaluate(
    ([wanted, gone, limit]) =>
      new Promise((resolve, reject) => {
        const shown = ([selector, text]) =>
          [...document.querySelectorAll(selector)].some(
            (each) => each.getClientRects().length && each.textContent.includes(text));
        const observer = new MutationObserver(look);
        function look() {
          if ((gone && document.querySelector(gone)) || !wanted.every(shown)) return;
          observer.disconnect();
          requestAnimationFrame(() => setTimeout(() => resolve(Date.now())));
        }
        observer.observe(document, {
          subtree: true, childList: true, characterData: true, attributes: true,
        });
        setTimeout(() => reject(new Error(`not shown: ${JSON.stringify(wanted)}`)), limit);
        look();
      }),
    [wanted, gone, LIMIT.timeout]);

// Leaves in the page when something was clicked.
function watch() {
  document.addEventListener('pointerdown', () => { window.clicked = Date.now(); }, true);
}

module.exports = {
  when,
  steps: {
    // The status bar and the card of a session both say its state.
    async changed(page, session, state) {
      const at = await when(page, [
        [`.jp-Singularity-status[data-state="${state}"]`, ''],
        [`${CARD}[data-session="${session}"] .jp-Singularity-state`, state],
      ]);
      return { at };
    },
    // The page anew, with the sidebar as it was: ms from the navigation to the first card.
    async reloaded(page, count) {
      await page.goto(page.url(), { waitUntil: 'commit', ...LIMIT });
      const at = await when(page, [[CARD, '']], SPLASH);
      await when(page, [[LINE, `${count} in all`]]);
      return { ms: at - (await page.evaluate(() => performance.timeOrigin)) };
    },
    // The page anew without the sidebar, which is opened when all sessions are known: ms from the
    // click to the first card.
    async opened(page, count) {
      await page.goto(`${page.url().replace(/\/lab.*/, '/lab')}?reset`, LIMIT);
      await page.waitForFunction(
        ([line, text]) => document.querySelector(line)?.textContent.includes(text),
        [LINE, `${count} in all`], LIMIT);
      await page.waitForSelector(SPLASH, { state: 'detached', ...LIMIT });
      if (await page.locator(CARD).first().isVisible()) throw new Error('the sidebar is open');
      await page.evaluate(watch);
      const tab = page.locator('.lm-TabBar-tab[data-id="jp-singularity-panel"]');
      const [at] = await Promise.all([when(page, [[CARD, '']]), tab.click(LIMIT)]);
      return { ms: at - (await page.evaluate(() => window.clicked)) };
    },
  },
};
