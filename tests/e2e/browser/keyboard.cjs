// Steps of `extension.cjs` and `dashboard.cjs` that use the keyboard alone, and what it does not reach.
'use strict';

const LIMIT = { timeout: 60000 };
const CONTROLS = 'button, input, select, textarea, summary, a[href], [tabindex="0"]';
const MOST = 400;

// Presses `key` until the focus leaves `root`, comes to where it was before, or does not move; notes
// all that had it. Not in the page: the dashboard would draw a part anew that is not as the server's.
async function walk(page, root, key) {
  for (let pressed = 0; pressed < MOST; pressed += 1) {
    const over = await page.evaluate((selector) => {
      const now = document.activeElement;
      if (!now.closest(selector) || now === window.walkedTo) return true;
      (window.focused ??= new WeakSet()).add(now);
      window.walkedTo = now;
      return false;
    }, root);
    if (over) return;
    await page.keyboard.press(key);
  }
  throw new Error(`${key} leads round in ${root}`);
}

// What can be used in `root` and had no focus.
const missed = (page, root) =>
  page.evaluate(
    ([selector, controls]) =>
      [...document.querySelectorAll(`:is(${selector}) :is(${controls})`)]
        .filter((each) => each.checkVisibility() && !each.disabled && !window.focused?.has(each))
        .map((each) => each.outerHTML.slice(0, 200)),
    [root, CONTROLS]);

const named = () => {
  const it = document.activeElement;
  return (it.getAttribute('aria-label') || it.innerText || it.name || it.tagName).trim();
};

// Tab from the element that has the focus until one fits; the names on the way.
async function tabTo(page, selector) {
  const names = [];
  for (let pressed = 0; pressed < 40; pressed += 1) {
    await page.keyboard.press('Tab');
    names.push(await page.evaluate(named));
    if (await page.evaluate((wanted) => document.activeElement.matches(wanted), selector)) return names;
  }
  throw new Error(`Tab does not lead to ${selector}, but to ${names.join(' | ')}`);
}

module.exports = {
  walk,
  missed,
  steps: {
    // All of the sidebar: Tab through it from its first field on, once for each card that the arrows
    // lead to; what was missed, and how much there is.
    async keys(page) {
      const panel = '.jp-Singularity-panel';
      const rows = await page.locator('.jp-Singularity-row').count();
      for (let row = 0; row < rows; row += 1) {
        await page.locator('.jp-Singularity-filter input[type=search]').focus();
        await tabTo(page, '.jp-Singularity-row');
        await page.keyboard.press('Home');
        for (let down = 0; down < row; down += 1) await page.keyboard.press('ArrowDown');
        await walk(page, panel, 'Tab');
      }
      await page.locator('.jp-Singularity-filter input[type=search]').focus();
      await walk(page, panel, 'Tab');
      // Tabs have one place in the order, the arrows lead on.
      if (await page.locator('.jp-Singularity-details').count()) {
        await page.locator('.jp-Singularity-details [role=tab][aria-selected=true]').focus();
        for (const _ of await page.locator('.jp-Singularity-details [role=tab]').all()) {
          await page.evaluate(() => { window.focused.add(document.activeElement); });
          await page.keyboard.press('ArrowRight');
        }
        // They have led round, and what belongs to the tab is drawn anew: walk through that too.
        await page.locator('.jp-Singularity-details').getByText('asking the scheduler')
          .waitFor({ state: 'hidden', ...LIMIT });
        await walk(page, panel, 'Tab');
      }
      return { missed: await missed(page, panel), rows,
               reached: await page.locator(`${panel} *`).evaluateAll(
                 (all) => all.filter((each) => window.focused.has(each)).length) };
    },
    // The button in the notebook's toolbar, from the first one there, then what comes after it, to
    // the buttons of the banner.
    async keysToBanner(page) {
      await page.locator('.jp-NotebookPanel-toolbar button, .jp-NotebookPanel-toolbar jp-button')
        .first().focus();
      const toolbar = await tabTo(page, '.jp-Singularity-button');
      const banner = await tabTo(page, '.jp-Singularity-banner button:last-of-type');
      return { toolbar, banner };
    },
    // The menu of that button: the entries there are, and those that the arrows lead to, submenus
    // included; Escape leads back.
    async keyMenu(page) {
      const button = page.locator('.jp-NotebookPanel-toolbar .jp-Singularity-button');
      await button.focus();
      await page.keyboard.press('Enter');
      await page.locator('.lm-Menu').waitFor(LIMIT);
      const labels = '.lm-Menu-item:not([data-type="separator"]) .lm-Menu-itemLabel';
      const active = () => page.locator('.lm-Menu').last()
        .locator('.lm-Menu-item.lm-mod-active .lm-Menu-itemLabel').innerText();
      const entries = await page.locator(labels).allInnerTexts();
      const reached = {};
      for (const _ of entries) {
        const entry = await active();
        reached[entry] = [];
        if (await page.locator('.lm-Menu-item.lm-mod-active[data-type="submenu"]').count()) {
          await page.keyboard.press('ArrowRight');
          const choices = await page.locator('.lm-Menu').last().locator(labels).count();
          for (let n = 0; n < choices; n += 1) {
            reached[entry].push(await active());
            await page.keyboard.press('ArrowDown');
          }
          await page.keyboard.press('ArrowLeft');
        }
        await page.keyboard.press('ArrowDown');
      }
      await page.keyboard.press('Escape');
      await page.locator('.lm-Menu').waitFor({ state: 'detached', ...LIMIT });
      const focused = await button.evaluate((node) => node === document.activeElement);
      return { entries, reached, focused };
    },
    // The item in the status bar, by Tab; Enter opens the sidebar.
    async keysToStatus(page) {
      await page.locator('#jp-main-statusbar').locator('button, [tabindex="0"]').first().focus();
      if (!(await page.locator('.jp-Singularity-status:focus').count())) {
        await tabTo(page, '.jp-Singularity-status');
      }
      await page.keyboard.press('Enter');
      await page.locator('.jp-Singularity-panel').waitFor(LIMIT);
    },
  },
};
