import * as React from 'react';

import { Announcer } from '../src/model/words/announce';
import { Feed } from '../src/model/server/feed';
import { countText } from '../src/model/sessions/filter';
import { IChange } from '../src/model/sessions/history';
import { IPage } from '../src/model/server/load';
import { Refused } from '../src/model/server/refused';
import { ISession } from '../src/model/sessions/session';
import { Sessions } from '../src/model/sessions/sessions';
import { ISidebarSource, Sidebar } from '../src/model/sessions/sidebar';
import { IStanding } from '../src/model/sessions/standing';
import { IStored, readStored } from '../src/model/sessions/stored';
import { FirstReports } from '../src/model/server/usage';
import { Whys } from '../src/model/words/whys';
import { CARD_HEIGHT } from '../src/view/cards/card';
import { DETAILS_HEIGHT } from '../src/view/cards/details';
import { Panel } from '../src/view/panel';
import { Page } from './support/page';
import { DOCUMENT, OVER, sample, TEXTS, UNDO, why } from './support/samples';

const STORED = {
  id: 'c1',
  name: 'before lr',
  at: '2026-01-01T10:00:00Z',
  level: 'process',
  bytes: 3 * 2 ** 30,
  stored_bytes: 2 ** 29,
  reason: '',
  damaged: null,
  cause: '',
  proved_at: '2026-01-01T10:01:00Z',
  unproved: null,
  restorable: true
};

function stored(changes: Record<string, unknown> = {}): IStored {
  return readStored({ ...STORED, ...changes }) as IStored;
}

/** A server that answers what the test says. */
class Server implements ISidebarSource {
  known: IStored[] = [stored()];
  changes: IChange[] = [];
  archive: ISession[] = [];
  refusal: Error | null = null;
  /** Whether nothing of a log is there yet. */
  waits = false;
  log_ = 'event: log\ndata: {"text": "epoch 1\\n", "next": 8}\n\nevent: end\ndata: {}\n\n';
  asked: string[] = [];

  async checkpoints(): Promise<IStored[]> {
    return this._answer('checkpoints', this.known);
  }

  async history(_: string, cursor: string | null): Promise<IPage<IChange>> {
    const half = Math.ceil(this.changes.length / 2);
    return this._answer(
      `history ${cursor}`,
      cursor
        ? { items: this.changes.slice(half), next: null }
        : { items: this.changes.slice(0, half), next: half < this.changes.length ? 'more' : null }
    );
  }

  async past(cursor: string | null): Promise<IPage<ISession>> {
    return this._answer(`past ${cursor}`, { items: this.archive, next: cursor ? null : 'more' });
  }

  async *log(): AsyncIterable<string> {
    this.asked.push('log');
    if (this.refusal) {
      throw this.refusal;
    }
    if (this.waits) {
      await new Promise(() => undefined);
    }
    yield this.log_;
  }

  private _answer<T>(question: string, value: T): T {
    this.asked.push(question);
    if (this.refusal) {
      throw this.refusal;
    }
    return value;
  }
}

const page = new Page();
let server: Server;
let sessions: Sessions;
let sidebar: Sidebar;
let feed: Feed;
let asked: string[];
/** What there is to know of the turn of those that wait. */
let turn: Partial<IStanding>;

beforeEach(() => {
  page.open();
  server = new Server();
  sessions = new Sessions();
  sidebar = new Sidebar(server, sessions);
  feed = new Feed({ open: () => opened(), list: async () => null }, sessions);
  asked = [];
  turn = {};
});

afterEach(async () => {
  feed.stop();
  await page.close();
});

async function* opened(): AsyncIterable<string> {
  const listed = JSON.stringify({ sessions: sessions.all.map(({ id }) => ({ ...DOCUMENT, id })) });
  yield `event: snapshot\ndata: ${listed}\n\n`;
  await new Promise(() => undefined);
}

async function showPanel(ask = async () => ''): Promise<void> {
  await page.show(
    <Panel
      sessions={sessions}
      feed={feed}
      whys={new Whys(async () => why(await ask(), turn))}
      sidebar={sidebar}
      announcer={new Announcer(sessions, TEXTS)}
      reports={new FirstReports(async () => null, sessions.usage)}
      texts={TEXTS}
      actions={{
        act: (verb, session) => asked.push(`${verb} ${session.id}`),
        menu: session => asked.push(`menu ${session.id}`),
        restore: (session, { id }) => asked.push(`restore ${session.id} ${id}`),
        fork: (session, { id }) => asked.push(`fork ${session.id} ${id}`),
        output: session => asked.push(`output ${session.id}`)
      }}
    />
  );
  await page.pass(50);
}

function many(count: number) {
  return Array.from({ length: count }, (_, n) => ({
    ...DOCUMENT,
    id: `s${String(n).padStart(4, '0')}`,
    name: `train-${n}.ipynb`,
    created_at: new Date(Date.UTC(2026, 0, 1) - n * 1000).toISOString()
  }));
}

function shown(): string[] {
  return page.all('[role=listitem]').map(row => row.dataset.key ?? '');
}

function focused(): string {
  return (document.activeElement as HTMLElement).dataset.key ?? '';
}

test('a card says what a session is, why, and what one can do', async () => {
  const place = { place: 2, ahead: 1 };
  sessions.replace([{ ...DOCUMENT, queue: place, state: 'waiting', devices: [] }]);
  await showPanel(async () => 'place 2, expected in 40 s');
  expect(page.node.textContent).toContain('train.ipynbwaiting · standard');
  expect(page.node.textContent).toContain('place 2, expected in 40 s');
  expect(page.node.textContent).toContain('place 2 in the queue · wants 1 device · local');
  expect(page.node.textContent).toContain('checkpoint 5 min ago: "good"');
  expect(page.all('.jp-Singularity-card button').map(b => b.getAttribute('aria-label'))).toEqual([
    'Details of train.ipynb',
    'All actions for train.ipynb',
    'Checkpoint train.ipynb',
    'Suspend train.ipynb'
  ]);
  page.button('Checkpoint train.ipynb').click();
  page.button('All actions for train.ipynb').click();
  expect(asked).toEqual(['checkpoint a1', 'menu a1']);
});

test('a card says what the state means, and whether a cell runs, which it does not say', async () => {
  const line = () => page.query('.jp-Singularity-line').textContent;
  sessions.replace([DOCUMENT]);
  await showPanel();
  expect(line()).toBe('running · standard · idle');
  expect(page.query('.jp-Singularity-state').title).toBe('Its process runs and holds its devices');
  await page.do(() => sessions.take('session', { ...DOCUMENT, busy: true }));
  expect(line()).toBe('running · standard · busy');
  await page.do(() => sessions.take('session', { ...DOCUMENT, state: 'parked', devices: [] }));
  expect(line()).toBe('parked · standard');
  await page.do(() => sessions.take('session', { ...DOCUMENT, kind: 'batch' }));
  expect(line()).toBe('running · standard batch');
});

test('the sentence on a card begins with what is not above it already', async () => {
  sessions.replace([{ ...DOCUMENT, state: 'waiting', devices: [] }]);
  const told = 'alice/train.ipynb is waiting: its code called a device: it waits for bob/eval.';
  await showPanel(async () => told);
  const reason = page.query('.jp-Singularity-reason');
  expect(reason.textContent).toBe('its code called a device: it waits for bob/eval.');
  expect(reason.title).toBe(told);
});

test('a card says first when a session goes on', async () => {
  sessions.replace([{ ...DOCUMENT, state: 'waiting', devices: [] }]);
  turn = { place: 1, highS: 35 };
  await showPanel(async () => 'alice/train.ipynb is waiting: bob/eval has both devices.');
  expect(page.query('.jp-Singularity-reason').textContent).toBe(
    'you are next, about 35 s: bob/eval has both devices.'
  );
});

test('the line above the list counts who has devices, who waits and who rests', async () => {
  const as = (id: string, changes: object) => ({ ...DOCUMENT, id, devices: [], ...changes });
  const over = { process_state: 'completed', state: 'completed' };
  sessions.replace([
    as('a', { devices: ['cpu:0'] }),
    as('b', { devices: ['cpu:1'], state: 'resizing' }),
    as('c', { state: 'waiting' }),
    as('d', { state: 'queued' }),
    as('e', { state: 'ready' }),
    as('f', { state: 'parked' }),
    as('g', { state: 'suspended' }),
    as('h', over)
  ]);
  expect(countText(sessions.all, TEXTS)).toBe('2 with devices, 2 waiting, 3 at rest, 1 ended');
  expect(countText([sessions.get('a')!], TEXTS)).toBe('1 with a device');
  void feed.start(); // it tells of the same ones that all run
  await showPanel();
  expect(page.query('.jp-Singularity-link').textContent).toBe('8 with devices');
});

test('a transfer has a bar that is read aloud', async () => {
  const progress = { bytes_done: 512, bytes_total: 1024, rate: 0, eta_s: null };
  sessions.replace([{ ...DOCUMENT, state: 'suspending', progress }]);
  await showPanel();
  expect(page.query('progress').getAttribute('aria-valuetext')).toBe('512 B of 1.0 KiB');
});

test('of a thousand sessions only those in sight are drawn', async () => {
  sessions.replace(many(1000));
  await showPanel();
  expect(shown().length).toBeGreaterThan(3);
  expect(shown().length).toBeLessThan(30);
  expect(page.query('[role=listitem]').getAttribute('aria-setsize')).toBe('1000');
  await page.do(() => {
    page.query('[role=list]').scrollTop = CARD_HEIGHT * 500;
    page.query('[role=list]').dispatchEvent(new Event('scroll', { bubbles: true }));
  });
  expect(shown()).toContain('s0501');
  expect(shown()).not.toContain('s0001');
  // The one that Tab leads to is always there.
  expect(shown()).toContain('s0000');
});

test('keys lead from card to card, and into the list that is not drawn', async () => {
  sessions.replace(many(200));
  await showPanel();
  await page.do(() => page.query('[data-key=s0000]').focus());
  await page.key('ArrowDown');
  expect(focused()).toBe('s0001');
  expect(page.button('Suspend train-1.ipynb').tabIndex).toBe(0);
  expect(page.button('Suspend train-0.ipynb').tabIndex).toBe(-1);
  await page.key('End');
  expect(focused()).toBe('s0199');
  await page.key('ArrowUp');
  expect(focused()).toBe('s0198');
  await page.key('Home');
  expect(focused()).toBe('s0000');
});

test('the focus stays while sessions change, and goes on when its session is gone', async () => {
  sessions.replace(many(5));
  await showPanel();
  await page.do(() => page.button('Suspend train-2.ipynb').focus());
  await page.do(() => sessions.take('session', { ...many(3)[0], state: 'parked' }));
  await page.do(() => sessions.take('session', { ...DOCUMENT, id: 'new' }));
  expect(document.activeElement).toBe(page.button('Suspend train-2.ipynb'));
  const left = many(5).filter(({ id }) => id !== 's0002');
  await page.do(() => sessions.replace([{ ...DOCUMENT, id: 'new' }, ...left]));
  expect(focused()).toBe('s0003');
});

test('Enter opens a card, Escape closes it; one is open at a time', async () => {
  sessions.replace(many(3));
  await showPanel();
  await page.do(() => page.query('[data-key=s0000]').focus());
  await page.key('Enter');
  expect(page.button('Details of train-0.ipynb').getAttribute('aria-expanded')).toBe('true');
  expect(page.query('[data-key=s0000]').style.height).toBe(`${CARD_HEIGHT + DETAILS_HEIGHT}px`);
  expect(page.query('[role=tabpanel]').textContent).toContain('before lr');
  await page.do(() => page.button('Details of train-1.ipynb').click());
  expect(page.all('[role=tabpanel]')).toHaveLength(1);
  await page.do(() => page.query('[role=tab][aria-selected=true]').focus());
  await page.key('Escape');
  expect(page.all('[role=tabpanel]')).toHaveLength(0);
  expect(focused()).toBe('s0001');
});

test('tabs are chosen by arrows; the next card opens at the same one', async () => {
  sessions.replace(many(2));
  server.changes = [{ at: Date.now(), state: 'running', reason: 'it called a device' }];
  await showPanel();
  await page.do(() => sidebar.toggle('s0000'));
  await page.do(() => page.query('[data-part=checkpoints]').focus());
  await page.key('ArrowRight');
  expect(document.activeElement).toBe(page.query('[data-part=timeline]'));
  expect(page.query('[role=tabpanel]').textContent).toContain('it called a device');
  await page.key('End');
  expect(page.query('[role=tabpanel]').textContent).toContain('cuda:0 on cpu:0');
  await page.key('Home');
  await page.key('ArrowRight');
  await page.do(() => sidebar.toggle('s0001'));
  expect(page.query('[aria-selected=true]').dataset.part).toBe('timeline');
});

test('a checkpoint has its size, what is in it, and what can be done with it', async () => {
  sessions.replace([DOCUMENT]);
  server.known = [
    stored(),
    stored({ id: 'c2', name: '', damaged: 'a chunk is missing', restorable: false }),
    stored({ id: 'c3', name: 'w', level: 'device', restorable: false, reason: 'no CRIU here' }),
    stored({ id: 'c4', name: 'x', proved_at: null, unproved: 'a file is gone' })
  ];
  await showPanel();
  await page.do(() => sidebar.show('a1', 'checkpoints'));
  const [whole, damaged, device, unproved] = page
    .all('.jp-Singularity-stored li')
    .map(x => x.textContent);
  expect(whole).toContain('before lr5 min agoeverything · 3.0 GiB, 512 MiB in the store');
  expect(whole).toContain('in the storeproved 4 min ago');
  expect(damaged).toContain('without a name');
  expect(damaged).toContain('damaged: a chunk is missing');
  expect(damaged).not.toContain('proved');
  expect(damaged).not.toContain('Restore');
  expect(unproved).toContain('could not be proved: a file is gone');
  expect(unproved).toContain('Restore');
  expect(device).toContain('device state only');
  expect(device).toContain('no CRIU here');
  await page.do(() => page.button('Restore before lr').click());
  await page.do(() => page.button('Fork before lr').click());
  await page.do(() => page.button('Restore w').click());
  expect(asked).toEqual(['restore a1 c1', 'fork a1 c1', 'restore a1 c3']);
  expect(page.all('button').some(b => b.getAttribute('aria-label') === 'Fork w')).toBe(false);
});

test('a checkpoint without a name has what it was made for in its place', async () => {
  sessions.replace([DOCUMENT]);
  const made = ['restore', 'suspend', 'drain', 'move', 'periodic', 'unheard of'];
  server.known = made.map(cause => stored({ id: cause, name: '', cause }));
  server.known.push(stored({ id: 'named', cause: 'drain' }));
  await showPanel();
  await page.do(() => sidebar.show('a1', 'checkpoints'));
  const names = page.all('.jp-Singularity-stored strong').map(x => x.textContent);
  expect(names[1]).toMatch(/^suspended .*\d\d/);
  names.splice(1, 1);
  expect(names).toEqual([
    'before restore',
    'drain',
    'before a move',
    'by itself',
    'without a name',
    'before lr'
  ]);
});

test('the list is asked for anew when there is another checkpoint', async () => {
  sessions.replace([DOCUMENT]);
  await showPanel();
  await page.do(() => sidebar.show('a1', 'checkpoints'));
  server.known = [stored({ id: 'c9', name: 'after' }), ...server.known];
  await page.do(() => sessions.take('session', { ...DOCUMENT, reason: 'something else' }));
  expect(server.asked.filter(q => q === 'checkpoints')).toHaveLength(1);
  await page.do(() => sessions.take('session', { ...DOCUMENT, checkpoints: 2 }));
  expect(page.query('[role=tabpanel]').textContent).toContain('after');
  server.known = [stored({ id: 'c9', name: 'after', unproved: 'a file is gone' })];
  const tried = { ...STORED, unproved: 'a file is gone' };
  await page.do(() => sessions.take('session', { ...DOCUMENT, last_checkpoint: tried }));
  expect(page.query('[role=tabpanel]').textContent).toContain('could not be proved');
});

test('a server that refuses is one line, and asked again on demand', async () => {
  sessions.replace([DOCUMENT]);
  server.refusal = new Refused('the ledger is away; nothing was changed', 503);
  await showPanel();
  await page.do(() => sidebar.show('a1', 'checkpoints'));
  const part = page.query('[role=tabpanel]');
  expect(part.textContent).toContain('the ledger is away; nothing was changed');
  server.refusal = null;
  await page.do(() => part.querySelector('button')?.click());
  expect(part.textContent).not.toContain('the ledger is away');
  expect(part.textContent).toContain('before lr');
});

test('the timeline says what came when, how long it lasted, and what came back', async () => {
  const at = (minute: number) => Date.UTC(2026, 0, 1, 10, minute);
  sessions.replace([
    {
      ...DOCUMENT,
      loss: { back: ['variables'], lost: ['a socket'], at: new Date(at(4)).toISOString() }
    }
  ]);
  server.changes = [
    { at: at(4), state: 'running', reason: 'came back on cpu:0' },
    { at: at(2), state: 'suspended', reason: 'taken for alice/big' },
    { at: at(0), state: 'running', reason: 'its code called a device' }
  ];
  await showPanel();
  await page.do(() => sidebar.show('a1', 'timeline'));
  const lines = () => page.all('.jp-Singularity-timeline li').map(line => line.textContent ?? '');
  expect(lines()).toHaveLength(2);
  expect(lines()[0]).toContain('came back on cpu:0Back: variables.');
  expect(lines()[1]).toMatch(/suspended.* · 2 min.*taken for alice\/big/);
  await page.do(() => page.button('Load older').click());
  expect(lines()[2]).toContain('its code called a device');
  server.changes = [
    { at: at(5), state: 'parked', reason: 'idle' },
    ...server.changes.slice(0, 2),
    ...server.changes.slice(2)
  ];
  await page.do(() => sessions.take('session', { ...DOCUMENT, state: 'parked' }));
  expect(lines()).toHaveLength(4);
  expect(lines()[0]).toContain('idle');
});

test('the log is shown as text to read, with the way to the output of a run', async () => {
  sessions.replace([{ ...DOCUMENT, kind: 'batch', run: { output: '/home/a/out.ipynb' } }]);
  server.log_ =
    'event: log\ndata: {"text": "\\u001b[32mepoch 1\\u001b[0m\\n 10 %\\r 99 %\\n", "next": 29}\n\n' +
    'event: end\ndata: {}\n\n';
  await showPanel();
  await page.do(() => sidebar.show('a1', 'log'));
  expect(page.query('pre').textContent).toBe('epoch 1\n 99 %\n');
  expect(page.query('[role=tabpanel]').textContent).toContain('The session has ended');
  await page.do(() => page.button('Open output notebook').click());
  expect(asked).toEqual(['output a1']);
});

test('the log of a run that waits says that it has not started', async () => {
  sessions.replace([{ ...DOCUMENT, kind: 'batch', process_state: 'queued', state: 'queued' }]);
  server.waits = true;
  await showPanel();
  await page.do(() => sidebar.show('a1', 'log'));
  const part = page.query('[role=tabpanel]');
  expect(part.textContent).toBe('It has not started yet; what it prints will be here.');
  await page.do(() => sessions.take('session', DOCUMENT));
  expect(part.textContent).toBe('asking the scheduler');
});

test('a log that there is not says so, and is asked for when the session goes on', async () => {
  sessions.replace([{ ...DOCUMENT, process_state: 'queued', state: 'queued' }]);
  server.refusal = new Refused('it has not started, so there is no log', 404);
  await showPanel();
  await page.do(() => sidebar.show('a1', 'log'));
  expect(page.query('[role=tabpanel]').textContent).toContain('it has not started');
  server.refusal = null;
  await page.do(() => sessions.take('session', DOCUMENT));
  expect(page.query('pre').textContent).toBe('epoch 1\n');
});

test('the sparkline follows the reports and can be read aloud', async () => {
  sessions.replace([{ ...DOCUMENT, devices: ['cpu:1'] }]);
  await showPanel();
  const report = (used: number | null, busy: number | null) => ({
    session: 'a1',
    devices: [
      {
        virtual_device: 0,
        device: 'cpu:1',
        name: 'a CPU',
        memory_used_bytes: used,
        memory_total_bytes: 4 * 2 ** 30,
        utilisation_percent: busy
      }
    ]
  });
  expect(page.node.textContent).toContain('cuda:0 on cpu:1 · local');
  expect(page.all('.jp-Singularity-spark')).toHaveLength(0);
  await page.do(() => sessions.take('devices', report(null, null)));
  expect(page.all('.jp-Singularity-spark')).toHaveLength(0);
  await page.do(() => sessions.take('devices', report(2 ** 30, 20)));
  await page.pass(60_000);
  await page.do(() => sessions.take('devices', report(2 ** 31, 40)));
  expect(page.query('.jp-Singularity-spark').getAttribute('aria-label')).toBe(
    'Devices, the last 5 min: now 2.0 GiB of 4.0 GiB, 40 % busy'
  );
  expect(page.query('.jp-Singularity-busy').getAttribute('points')?.split(' ')).toHaveLength(4);
  await page.do(() => sidebar.show('a1', 'devices'));
  expect(page.query('[role=tabpanel]').textContent).toBe(
    'cuda:0 on cpu:1a CPU2.0 GiB of 4.0 GiB, 40 % busy'
  );
  await page.do(() => sessions.take('session', { ...DOCUMENT, devices: [], state: 'parked' }));
  expect(page.all('.jp-Singularity-spark')).toHaveLength(0);
  expect(page.query('[role=tabpanel]').textContent).toBe('no device');
});

test('the parts of a run on several nodes say which they are', async () => {
  const part = { gang: 'f0', number: 1, parts: 2, sessions: ['a0', 'a1'] };
  sessions.replace([{ ...DOCUMENT, kind: 'batch', part }]);
  await showPanel();
  const card = () => page.query('.jp-Singularity-card').textContent;
  expect(card()).toContain('running · standard batch · 2 of 2 nodes');
  await page.do(() => sessions.take('session', { ...DOCUMENT, kind: 'batch', part: null }));
  expect(card()).not.toContain('nodes');
});

test('the list is filtered by words, state and kind', async () => {
  sessions.replace([
    { ...DOCUMENT, id: 'a', name: 'train.ipynb' },
    { ...DOCUMENT, id: 'b', name: 'big run', kind: 'batch', state: 'queued' }
  ]);
  await showPanel();
  expect(shown()).toEqual(['a', 'b']);
  await page.do(() => sidebar.choose({ text: 'BIG queued' }));
  expect(shown()).toEqual(['b']);
  await page.do(() => sidebar.choose({ text: '', kind: 'interactive' }));
  expect(shown()).toEqual(['a']);
  await page.do(() => sidebar.choose({ kind: 'any', group: 'paused' }));
  expect(shown()).toEqual([]);
  await page.do(() => sidebar.show('b'));
  expect(shown()).toEqual(['a', 'b']);
  expect(focused()).toBe('b');
});

test('what ended while nobody listened is shown for an hour, older ones on demand', async () => {
  const ended = (id: string, minutes: number) =>
    sample({
      id,
      state: 'completed',
      updated_at: new Date(Date.now() - minutes * 60_000).toISOString()
    });
  server.archive = [ended('new', 5), ended('old', 500), sample({ id: 'a' })];
  sessions.replace([{ ...DOCUMENT, id: 'a' }]);
  void feed.start();
  await showPanel();
  await page.pass(50);
  expect(shown()).toEqual(['a', 'new']);
  await page.do(() => sidebar.choose({ ended: true }));
  expect(shown()).toEqual(['a', 'new', 'old']);
  server.archive = [ended('oldest', 5000)];
  await page.do(() => page.button('Load older ones').click());
  expect(shown()).toEqual(['a', 'new', 'old', 'oldest']);
  expect(server.asked).toEqual(['past null', 'past more']);
});

test('the panel follows the sessions and says when there are none', async () => {
  await showPanel(async () => 'place 1, expected in 10 s');
  expect(page.query('[role=status]').textContent).toBe('connecting to the scheduler');
  await page.do(() => sessions.take('session', { ...DOCUMENT, state: 'waiting' }));
  expect(page.query('[data-session=a1]').textContent).toContain('expected in 10 s');
  await page.do(() => sessions.take('session', { ...DOCUMENT, state: 'running' }));
  expect(page.query('[data-session=a1]').textContent).toContain('its code called a device');
});

test('who listens is told of important changes only', async () => {
  sessions.replace([DOCUMENT]);
  void feed.start();
  await showPanel();
  await page.do(() => sessions.take('session', { ...DOCUMENT, state: 'attaching' }));
  expect(page.query('[role=status]').textContent).toBe('');
  const taken = { ...DOCUMENT, state: 'parked', reason: 'taken for alice/big' };
  await page.do(() => sessions.take('session', taken));
  expect(page.query('[role=status]').textContent).toBe('train.ipynb: parked, taken for alice/big');
});

test('a lost connection is one line, and opened again on demand', async () => {
  let times = 0;
  feed = new Feed(
    {
      open: () => {
        times += 1;
        throw new Error('502 Bad Gateway');
      },
      list: async () => {
        throw new Error('502 Bad Gateway');
      }
    },
    sessions
  );
  void feed.start();
  await showPanel();
  expect(page.query('.jp-Singularity-link').textContent).toBe(
    'no connection to the scheduler (502 Bad Gateway)Try again'
  );
  await page.do(() => page.button('Try again').click());
  expect(times).toBe(2);
});

test('the end of a session is taken back on its card', async () => {
  sessions.replace([
    { ...DOCUMENT, ...OVER, id: 'closed', name: 'closed.ipynb', undo_end: UNDO },
    { ...DOCUMENT, ...OVER, id: 'gone', name: 'gone.ipynb', undo_end: null },
    { ...DOCUMENT, id: 'live', name: 'live.ipynb', undo_end: null }
  ]);
  sidebar.choose({ ended: true });
  await showPanel();
  await page.do(() => page.button('Take back closed.ipynb').click());
  expect(asked).toEqual(['reopen closed']);
  for (const name of ['gone.ipynb', 'live.ipynb']) {
    expect(() => page.button(`Take back ${name}`)).toThrow('no button');
  }
});
