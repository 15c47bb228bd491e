// Whether a page has made something of names and texts that are none of its own: `window.owned` is
// set by their scripts, and their elements have the attribute `data-owned`.
'use strict';
module.exports = (page) =>
  page.evaluate(() => ({
    ran: window.owned ?? 0,
    elements: [...document.querySelectorAll('[data-owned]')].map((each) => each.outerHTML.slice(0, 200)),
  }));
