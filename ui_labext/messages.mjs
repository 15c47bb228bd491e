// Collects the strings of the JupyterLab extension that translators translate, from the sources and
// the settings, as jupyterlab-translate does, into the template that a language pack begins with.
// `node messages.mjs` writes it; `--check` says whether it is what the sources have.
import fs from 'node:fs';
import path from 'node:path';
import ts from 'typescript';

const TEMPLATE = 'singularity_labext/locale/jupyter_singularity.pot';
const SOURCES = 'src';
const NOT_IN_JUPYTERLAB = path.join(SOURCES, 'dashboard');

/** The calls of a translation bundle: how many of the first arguments are strings to translate. */
const CALLS = { __: 1, gettext: 1, _n: 2, ngettext: 2 };

/** [what has the text in a settings file, the context under which JupyterLab looks it up]. */
const SETTINGS = [
  [/^(title|description)$/, 'schema'],
  [/^properties\/.*\/(title|description)$/, 'settings'],
  [/^jupyter\.lab\.menus\/.*\/label$/, 'menu']
];

const messages = new Map();

function add(texts, context, where) {
  const key = JSON.stringify([context, ...texts]);
  const found = messages.get(key) ?? { texts, context, places: new Set() };
  found.places.add(where);
  messages.set(key, found);
}

function files(folder) {
  return fs
    .readdirSync(folder, { withFileTypes: true })
    .flatMap(each =>
      each.isDirectory() ? files(path.join(folder, each.name)) : [path.join(folder, each.name)]
    )
    .filter(name => /\.tsx?$/.test(name) && !name.startsWith(NOT_IN_JUPYTERLAB))
    .sort();
}

function readSource(name) {
  const source = ts.createSourceFile(name, fs.readFileSync(name, 'utf8'), ts.ScriptTarget.Latest);
  const look = node => {
    const { expression, arguments: given } = node;
    if (ts.isCallExpression(node) && ts.isPropertyAccessExpression(expression)) {
      const count = Object.hasOwn(CALLS, expression.name.text) && CALLS[expression.name.text];
      if (count) {
        const texts = given.slice(0, count);
        if (texts.length < count || !texts.every(ts.isStringLiteralLike)) {
          const { line } = source.getLineAndCharacterOfPosition(node.pos);
          throw new Error(`${name}:${line + 1}: what is translated must be a literal string`);
        }
        const written = texts.map(each => each.text);
        add(written, '', name);
      }
    }
    ts.forEachChild(node, look);
  };
  look(source);
}

function readSettings(value, where, name) {
  for (const [key, item] of Object.entries(value)) {
    const place = where ? `${where}/${key}` : key;
    const context = SETTINGS.find(([pattern]) => pattern.test(place))?.[1];
    if (typeof item === 'string' && context) {
      add([item], context, name);
    } else if (typeof item === 'object' && item !== null) {
      readSettings(item, place, name);
    }
  }
}

files(SOURCES).forEach(readSource);
for (const name of fs.readdirSync('schema').sort()) {
  const file = path.join('schema', name);
  readSettings(JSON.parse(fs.readFileSync(file, 'utf8')), '', file);
}

function entry({ texts: [one, many], context, places }) {
  return [
    `#: ${[...places].join(' ')}`,
    ...(/%\d/.test(one) ? ['#, javascript-format'] : []),
    ...(context ? [`msgctxt ${JSON.stringify(context)}`] : []),
    `msgid ${JSON.stringify(one)}`,
    ...(many
      ? [`msgid_plural ${JSON.stringify(many)}`, 'msgstr[0] ""', 'msgstr[1] ""']
      : ['msgstr ""'])
  ].join('\n');
}

const header = [
  '# The strings of jupyter-singularity in JupyterLab; made by `npm run messages`.',
  'msgid ""',
  'msgstr ""',
  '"Project-Id-Version: jupyter_singularity\\n"',
  '"MIME-Version: 1.0\\n"',
  '"Content-Type: text/plain; charset=UTF-8\\n"',
  '"Content-Transfer-Encoding: 8bit\\n"'
].join('\n');
const template = [header, ...[...messages.values()].map(entry)].join('\n\n') + '\n';

if (process.argv.includes('--check')) {
  if (!fs.existsSync(TEMPLATE) || fs.readFileSync(TEMPLATE, 'utf8') !== template) {
    console.error(`${TEMPLATE} is not what the sources have: run npm run messages`);
    process.exit(1);
  }
} else {
  fs.mkdirSync(path.dirname(TEMPLATE), { recursive: true });
  fs.writeFileSync(TEMPLATE, template);
  console.log(`${messages.size} strings in ${TEMPLATE}`);
}
