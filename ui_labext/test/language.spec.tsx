import * as React from 'react';

import { Announcer } from '../src/model/words/announce';
import { Behind } from '../src/model/sessions/behind';
import { PARTS } from '../src/model/sessions/details';
import { Feed, linkText } from '../src/model/server/feed';

import { Followed } from '../src/model/sessions/followed';

import { nextNotice } from '../src/model/words/notice';
import { inWords, Own, Refused } from '../src/model/server/refused';
import { Sessions } from '../src/model/sessions/sessions';
import { ISidebarSource, Sidebar } from '../src/model/sessions/sidebar';
import { IStored, readStored } from '../src/model/sessions/stored';
import { FirstReports } from '../src/model/server/usage';
import { commandLabel, verbCaption, verbLabel, VERBS } from '../src/model/words/verbs';
import { cellsWait } from '../src/model/words/waits';
import { cancelText, restoreText } from '../src/model/words/warnings';
import { Whys } from '../src/model/words/whys';
import { ITexts, stateWord } from '../src/model/words/words';
import { Banner } from '../src/view/banner';
import { SessionButton } from '../src/view/button';
import { Panel } from '../src/view/panel';
import { Status } from '../src/view/status';
import { Page } from './support/page';
import { DOCUMENT, sample, TEXTS, why } from './support/samples';

const { messages, pseudo, untranslated } = jest.requireActual<{
  messages: () => { context: string; one: string; many: string }[];
  pseudo: (text: string) => string;
  untranslated: (text: string, data: readonly string[]) => string[];
}>('./support/pseudo.cjs');

const known = new Set(messages().flatMap(({ context, one, many }) => (context ? [] : [one, many])));
const used = new Set<string>();

/** A string that translators do not get is not translated. */
function translated(text: string): string {
  used.add(text);
  return known.has(text) ? pseudo(text) : text;
}

const PSEUDO: ITexts = {
  __: (text, ...args) => TEXTS.__(translated(text), ...args),
  _n: (one, many, count, ...args) => TEXTS._n(translated(one), translated(many), count, ...args)
};

const NOW = Date.UTC(2026, 0, 1, 10, 5);
const STATES = [
  ...['queued', 'starting', 'ready', 'waiting', 'attaching', 'running', 'parking', 'parked'],
  ...[
    'migrating',
    'resizing',
    'suspending',
    'suspended',
    'resuming',
    'completed',
    'failed',
    'cancelled'
  ]
];
const STORED = { id: 'c1', name: 'good', at: DOCUMENT.created_at, level: 'process', bytes: 1024 };
const KEPT = [
  { ...STORED, stored_bytes: 512, restorable: true, proved_at: DOCUMENT.created_at },
  { ...STORED, id: 'c2', name: '', level: 'device', reason: 'REASON', unproved: 'REASON' },
  { ...STORED, id: 'c3', level: 'files', damaged: 'REASON' }
].map(each => readStored(each) as IStored);

/** What comes from the server, and units, names of devices, numbers of time. */
const DATA = [
  ...['REASON', 'train.ipynb', 'alice', 'standard', 'premium', 'basic', 'local', 'good', 'c2'],
  ...['cuda:', 'cpu:0', 'cpu:1', 'KiB', 'GiB', 'PLACE', 'AM', 'PM', 'a1', 'epoch', 'SENTENCE']
];

/** A server that fails, or answers. */
class Server implements ISidebarSource {
  failure: Error | null = null;

  async checkpoints(): Promise<IStored[]> {
    return this._answer(KEPT);
  }

  async history() {
    const changes = STATES.map(state => ({ at: NOW - 60_000, state, reason: 'REASON' }));
    return this._answer({ items: changes, next: 'more' });
  }

  async past() {
    return this._answer({ items: [], next: 'more' });
  }

  async *log(): AsyncIterable<string> {
    this._answer(null);
    yield 'event: log\ndata: {"text": "epoch 1\\n", "next": 8}\n\nevent: end\ndata: {}\n\n';
  }

  private _answer<T>(value: T): T {
    if (this.failure) {
      throw this.failure;
    }
    return value;
  }
}

const page = new Page();
let panels = 0;
const feeds: Feed[] = [];

beforeEach(() => page.open(NOW));
afterEach(async () => {
  feeds.splice(0).forEach(feed => feed.stop());
  await page.close();
});

/** All that people read or hear in an element. */
function shown(root: HTMLElement): string[] {
  const texts: string[] = [];
  for (const node of [root, ...root.querySelectorAll('*')]) {
    for (const name of ['title', 'aria-label', 'placeholder', 'aria-valuetext']) {
      texts.push(node.getAttribute(name) ?? '');
    }
    texts.push(...[...node.childNodes].filter(isText).map(each => each.textContent ?? ''));
  }
  return texts.filter(Boolean);
}

function isText(node: Node): boolean {
  return node.nodeType === Node.TEXT_NODE;
}

/** Nothing in these is English. */
function expectTranslated(texts: readonly string[]): void {
  expect(texts.length).toBeGreaterThan(0);
  expect(texts.filter(text => untranslated(text, DATA).length)).toEqual([]);
}

function session(state: string, changes: Record<string, unknown> = {}) {
  return { ...DOCUMENT, id: `a1:${STATES.indexOf(state)}`, state, reason: 'REASON', ...changes };
}

async function showPanel(sidebar: Sidebar, sessions: Sessions, feed: Feed): Promise<void> {
  const nothing = () => undefined;
  await page.show(
    <Panel
      key={(panels += 1)}
      sessions={sessions}
      feed={feed}
      whys={new Whys(async () => why('SENTENCE', { place: 1, highS: 40 }))}
      sidebar={sidebar}
      announcer={new Announcer(sessions, PSEUDO)}
      reports={new FirstReports(async () => null, sessions.usage)}
      texts={PSEUDO}
      actions={{ act: nothing, menu: nothing, restore: nothing, fork: nothing, output: nothing }}
    />
  );
  await page.pass(100);
}

function feedOf(sessions: Sessions, open: () => AsyncIterable<string>): Feed {
  const feed = new Feed({ open, list: async () => null }, sessions);
  feeds.push(feed);
  return feed;
}

async function* silent(): AsyncIterable<string> {
  await new Promise(() => undefined);
}

const VARIANTS: Record<string, unknown>[] = [
  {},
  { kind: 'batch', run: { notebook: 'train.ipynb', output: 'train.ipynb' } },
  { devices: [], queue: { place: 2 }, last_checkpoint: null },
  { devices: ['cpu:0', 'cpu:0'], virtual_devices: 2 },
  { progress: { bytes_done: 1, bytes_total: 1024, rate: 1024, eta_s: 90 } },
  { last_checkpoint: { id: 'c1', name: '', at: null } }
];

test('what is written on cards of sessions in any state is translated', async () => {
  for (const changes of VARIANTS) {
    const sessions = new Sessions();
    sessions.replace(STATES.slice(0, 4).map(state => session(state, changes)));
    const feed = feedOf(sessions, silent);
    await showPanel(new Sidebar(new Server(), sessions), sessions, feed);
    expect(page.all('.jp-Singularity-card').length).toBeGreaterThan(0);
    expectTranslated(shown(page.node));
  }
  for (const state of STATES) {
    expectTranslated([stateWord(state, PSEUDO)]);
  }
});

test('what an open card has is translated, with an answer and without one', async () => {
  for (const failure of [null, new Refused(Own.noAnswer), new Refused('REASON', 500)]) {
    const sessions = new Sessions();
    const loss = { back: ['SENTENCE'], lost: [], rolled_back: true, at: DOCUMENT.created_at };
    sessions.replace([session('running', { loss, devices: ['cpu:0', 'cpu:1'] })]);
    const devices = [
      { device: 'cpu:0', virtual: 0, memory_used: 1024, memory_total: 2048, utilisation: 5 }
    ];
    sessions.usage.take({ session: 'a1:5', devices });
    const server = new Server();
    const sidebar = new Sidebar(server, sessions);
    await showPanel(sidebar, sessions, feedOf(sessions, silent));
    server.failure = failure;
    for (const part of PARTS) {
      await page.do(() => sidebar.show('a1:5', part));
      expect(page.query('[role=tabpanel]').textContent).not.toBe('');
      expectTranslated(shown(page.node));
    }
    await page.do(() => sidebar.choose({ text: 'no such', ended: true }));
    expectTranslated(shown(page.node));
  }
});

test('status bar, toolbar and what is said of the connection are translated', async () => {
  const sessions = new Sessions();
  sessions.replace([session('running')]);
  const behind = new Behind(async () => new Map([['k1', 'a1:5']]), sessions);
  const followed = new Followed(() => 'k1', sessions, behind);
  const failures = [...Object.values(Own), ''];
  const feed = feedOf(sessions, silent);
  await page.show(
    <>
      <Status
        feed={feed}
        session={() => followed.session}
        subscribe={listener => followed.follow(listener)}
        texts={PSEUDO}
        open={() => undefined}
      />
      <SessionButton followed={followed} feed={feed} texts={PSEUDO} open={() => undefined} />
    </>
  );
  await page.pass(5_000);
  expect(page.all('button')).toHaveLength(2);
  expectTranslated(shown(page.node));
  for (const known of [null, NOW]) {
    for (const why of failures) {
      expectTranslated([linkText({ state: 'lost', known, why }, 0, PSEUDO)]);
    }
  }
  expectTranslated([linkText({ state: 'connecting', known: null, why: '' }, 0, PSEUDO)]);
  for (const count of [1, 2]) {
    expectTranslated([linkText({ state: 'live', known: NOW, why: '' }, count, PSEUDO)]);
  }
  expectTranslated(Object.values(Own).map(why => inWords(why, PSEUDO)));
});

test('the banner is translated, whatever it is about', () => {
  const banner = new Banner(PSEUDO, () => undefined);
  const now = (state: string, changes = {}) => sample(session(state, changes));
  const standing = { by: 'alice', tier: 'premium', rule: 'preempt.tier', place: 2, highS: 90 };
  const planned = (what: string) => ({ what, at: null, rule: 'node.drain', why: 'REASON' });
  const loss = { back: ['SENTENCE'], lost: ['SENTENCE'], rolled_back: true, at: '2026-01-01' };
  const cases = [
    nextNotice(now('running'), now('parked'), standing, null, NOW, PSEUDO),
    nextNotice(now('running'), now('parked', { held_back: true }), null, null, NOW, PSEUDO),
    nextNotice(null, now('waiting'), { ...standing, place: 1 }, null, NOW, PSEUDO),
    nextNotice(now('resuming'), now('running', { loss }), null, null, NOW, PSEUDO),
    ...['park', 'suspend', 'end'].map(what =>
      nextNotice(null, now('running', { planned: planned(what) }), null, null, NOW, PSEUDO)
    )
  ];
  for (const notice of cases) {
    expect(notice).toBeTruthy();
    banner.tell({ ...notice!, offers: 'keep', at: NOW + 5_000 });
    expectTranslated(shown(banner.node));
    banner.tell({ ...notice!, offers: 'resume', at: NOW });
    expectTranslated(shown(banner.node));
  }
  banner.dispose();
});

test('verbs, warnings and marks are translated', () => {
  for (const verb of VERBS) {
    expectTranslated([
      verbLabel(verb, PSEUDO),
      commandLabel(verb, PSEUDO),
      verbCaption(verb, PSEUDO)
    ]);
  }
  for (const changes of [{}, { last_checkpoint: null, run: { output: '' } }]) {
    expectTranslated([cancelText(sample({ ...session('running'), ...changes }), NOW, PSEUDO)]);
  }
  for (const stored of KEPT) {
    for (const state of ['live', 'suspended']) {
      const now = sample(session('running', { process_state: state }));
      expectTranslated([restoreText(now, stored, false, NOW, PSEUDO)]);
      expectTranslated([restoreText(now, stored, true, NOW, PSEUDO)]);
    }
  }
  for (const state of ['queued', 'migrating', 'resizing', 'suspended']) {
    expectTranslated([cellsWait(sample(session(state)), PSEUDO)]);
  }
});

test('whatever asked for a translation is in the template', () => {
  expect([...used].filter(text => !known.has(text))).toEqual([]);
  expect(used.size).toBeGreaterThan(100);
});

test('a string that translators do not get is found', () => {
  expect(PSEUDO.__('Not in the template')).toBe('Not in the template');
  expect(untranslated('Not in ｔｈｅ template', DATA)).toEqual(['Not', 'in', 'template']);
  expect(untranslated(pseudo('Resize %1'), DATA)).toEqual([]);
});
