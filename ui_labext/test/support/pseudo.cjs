// A pseudo-language: each string of the template with full-width letters, so that in what is shown
// any other word is data, or was never given to the translator.
'use strict';
const fs = require('fs');
const path = require('path');

const TEMPLATE = path.join(__dirname, '../../singularity_labext/locale/jupyter_singularity.pot');

/** The messages of the template: [{context, one, many}], without its header. */
function messages() {
  const text = fs.readFileSync(TEMPLATE, 'utf8');
  return text
    .split('\n\n')
    .slice(1)
    .map(entry => {
      const value = key => {
        const line = entry.split('\n').find(each => each.startsWith(`${key} "`));
        return line ? JSON.parse(line.slice(key.length + 1)) : '';
      };
      return { context: value('msgctxt'), one: value('msgid'), many: value('msgid_plural') };
    });
}

/** A string in the pseudo-language; places for arguments ("%1") stay. */
function pseudo(text) {
  return text.replace(/%\d|[A-Za-z]/g, found =>
    found.length > 1 ? found : String.fromCharCode(found.charCodeAt(0) + 0xfee0)
  );
}

/** The catalogue as JupyterLab's server sends it to the page. */
function catalogue() {
  const domain = 'jupyter_singularity';
  const plural_forms = 'nplurals=2; plural=(n != 1);';
  const found = { '': { domain, language: 'de', plural_forms, version: '1' } };
  for (const { context, one, many } of messages()) {
    const key = context ? `${context}\u0004${one}` : one;
    found[key] = many ? [pseudo(one), pseudo(many)] : [pseudo(one)];
  }
  return { data: { [domain]: found }, message: '' };
}

/** The words in a text that are not of the pseudo-language, without those of `data`. */
function untranslated(text, data) {
  const rest = [...data]
    .filter(Boolean)
    .sort((a, b) => b.length - a.length)
    .reduce((left, each) => left.split(each).join(' '), text);
  return rest.match(/[A-Za-z]{2,}/g) ?? [];
}

module.exports = { messages, pseudo, catalogue, untranslated };
