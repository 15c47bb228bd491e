// Steps of `extension.cjs` that are about languages: the page in a pseudo-language, and what in it
// was never given to the translator.
'use strict';
const { catalogue, untranslated } = require('../../../ui_labext/test/support/pseudo.cjs');
const OWN = require('./own.cjs');

const LIMIT = { timeout: 60000 };

module.exports = {
  // The page anew, with the language pack of the pseudo-language; "": in English again.
  async language(page, name) {
    const where = '**/api/translations/**';
    await page.unroute(where);
    if (name) {
      await page.route(where, (route) => route.fulfill({ json: catalogue() }));
    }
    await page.reload();
    await page.waitForSelector('#jupyterlab-splash', { state: 'detached', ...LIMIT });
    await page.locator('.jp-Singularity-button').waitFor(LIMIT);
    await page.locator('.jp-Singularity-card').first().waitFor(LIMIT);
  },
  // The words in our parts of the page and in an open menu that are neither of that language nor
  // among `data`, a JSON list.
  async untranslated(page, data) {
    const texts = await page.evaluate((selector) => {
      const found = [];
      for (const root of document.querySelectorAll(selector)) {
        for (const node of [root, ...root.querySelectorAll('*')]) {
          if (!node.getClientRects().length) continue;
          for (const name of ['title', 'aria-label', 'placeholder', 'aria-valuetext']) {
            found.push(node.getAttribute(name) || '');
          }
          for (const child of node.childNodes) {
            if (child.nodeType === Node.TEXT_NODE) found.push(child.textContent);
          }
        }
      }
      return found.filter(Boolean);
    }, OWN);
    const known = JSON.parse(data);
    const wrong = texts.filter((text) => untranslated(text, known).length);
    return { found: [...new Set(wrong)], translated: texts.filter((text) => /[ａ-ｚ]/.test(text)).length };
  },
};
