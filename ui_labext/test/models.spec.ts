import { nextOf, readBack } from '../src/model/sessions/back';
import { rowByKey, topOf, visible } from '../src/view/cards/virtual';
import { chosen, EVERYTHING } from '../src/model/sessions/filter';
import { readHistory } from '../src/model/sessions/history';
import { IPage, Load, Paged } from '../src/model/server/load';
import { ILogSource, KEEP, Log, plain } from '../src/model/server/log';
import { first, Plans, readPlans } from '../src/model/server/plans';
import { Refused } from '../src/model/server/refused';
import { IPlanned } from '../src/model/sessions/session';
import {
  canFork,
  canRestore,
  IStored,
  readStored,
  storedName,
  storedNames
} from '../src/model/sessions/stored';
import { AGAIN_MS, FirstReports, PAST_MS, Usage } from '../src/model/server/usage';
import { cancelText, restoreText } from '../src/model/words/warnings';
import { clock, placedText } from '../src/model/words/words';
import { sample, TEXTS, UNDO } from './support/samples';

const NOW = Date.UTC(2026, 0, 1, 10, 5);

beforeEach(() => {
  jest.useFakeTimers({ now: NOW });
});

afterEach(() => {
  jest.useRealTimers();
});

async function settle(ms = 0): Promise<void> {
  await jest.advanceTimersByTimeAsync(ms);
}

// -- what is asked of the server -----------------------------------------------------------------

test('a question while one is under way is asked once more after it', async () => {
  const answers: ((answer: string) => void)[] = [];
  const load = new Load(() => new Promise<string>(resolve => answers.push(resolve)));
  void load.refresh();
  void load.refresh();
  void load.refresh();
  expect(answers).toHaveLength(1);
  answers[0]?.('too old');
  await settle();
  expect(answers).toHaveLength(2);
  answers[1]?.('new');
  await settle();
  expect(load).toMatchObject({ value: 'new', busy: false });
  expect(answers).toHaveLength(2);
});

test('what was known stays when a question fails', async () => {
  let fails = false;
  const load = new Load(async () => {
    if (fails) {
      throw new Error('away');
    }
    return 1;
  });
  await load.refresh();
  fails = true;
  await load.refresh();
  expect(load).toMatchObject({ value: 1, error: 'away' });
});

test('newer items come in front, older ones behind, none twice', async () => {
  let newest: IPage<number> = { items: [5, 4], next: 'before 4' };
  const asked: (string | null)[] = [];
  const paged = new Paged<number>(async cursor => {
    asked.push(cursor);
    return cursor ? { items: [4, 3, 2], next: null } : newest;
  }, String);
  await paged.refresh();
  await paged.older();
  expect(paged.value).toEqual({ items: [5, 4, 3, 2], next: null });
  newest = { items: [6, 5], next: 'before 5' };
  await paged.refresh();
  expect(paged.value).toEqual({ items: [6, 5, 4, 3, 2], next: null });
  newest = { items: [9, 8], next: 'before 8' };
  await paged.refresh();
  expect(paged.value).toEqual({ items: [9, 8], next: 'before 8' });
  expect(asked).toEqual([null, 'before 4', null, null]);
});

test('a history is read newest first; what is none is seen', () => {
  const change = (minute: number) => ({ at: `2026-01-01T10:0${minute}:00Z`, state: 'running' });
  const page = readHistory({ history: [change(1), { what: 1 }, change(2)], next: 'n' });
  expect(page?.items.map(each => each.at)).toEqual([NOW - 180_000, NOW - 240_000]);
  expect(page?.next).toBe('n');
  expect(readHistory({ changes: [] })).toBeNull();
});

// -- logs ----------------------------------------------------------------------------------------

class Printer implements ILogSource {
  offsets: (number | null)[] = [];
  streams: (string[] | Error)[] = [];

  async *log(_: string, offset: number | null): AsyncIterable<string> {
    this.offsets.push(offset);
    const next = this.streams.shift() ?? ['event: end\ndata: {}\n\n'];
    if (next instanceof Error) {
      throw next;
    }
    yield* next;
  }
}

function printed(text: string, next: number): string {
  return `event: log\ndata: ${JSON.stringify({ text, next })}\n\n`;
}

test('a log goes on where it broke off, and ends with the session', async () => {
  const printer = new Printer();
  printer.streams = [
    [printed('one\n', 4), 'event: away\ndata: {"message": "its node is away"}\n\n'],
    new Error('502 Bad Gateway'),
    [printed('two\n', 8), 'event: end\ndata: {}\n\n']
  ];
  const log = new Log(printer, 'a', () => 1);
  const states: string[] = [];
  log.subscribe(() => states.push(`${log.state} ${log.why}`));
  const done = log.start();
  await settle(60_000);
  await done;
  expect(log.text).toBe('one\ntwo\n');
  expect(printer.offsets).toEqual([null, 4, 4]);
  expect(states).toEqual([
    'following ',
    'lost its node is away',
    'lost 502 Bad Gateway',
    'following ',
    'ended '
  ]);
});

test('a log that is refused is not asked for again', async () => {
  const printer = new Printer();
  printer.streams = [new Refused('its output went to that terminal', 409)];
  const log = new Log(printer, 'a');
  await log.start();
  expect(log).toMatchObject({ state: 'refused', why: 'its output went to that terminal' });
  await settle(600_000);
  expect(printer.offsets).toEqual([null]);
});

test('of a long log the end is kept, from the beginning of a line on', async () => {
  const printer = new Printer();
  const line = `${'x'.repeat(99)}\n`;
  printer.streams = [[printed(`rest\nwhole\n`, 5000), printed(line.repeat(4000), 405_000)]];
  const log = new Log(printer, 'a');
  void log.start();
  await settle();
  log.stop();
  expect(log.cut).toBe(true);
  expect(log.text.length).toBeLessThanOrEqual(KEEP);
  expect(log.text.length).toBeGreaterThan(KEEP - 200);
  expect(log.text.startsWith('xxx')).toBe(true);
  expect(log.text.length % 100).toBe(0);
});

test('what only a terminal understands is taken out of a log', () => {
  expect(plain('\x1b[0;31mError\x1b[0m\r\n 1 %\r 50 %\r100 %\nend')).toBe('Error\n100 %\nend');
  expect(plain('50 %\r')).toBe('50 %');
});

// -- devices -------------------------------------------------------------------------------------

function report(device: string, used: number, busy: number, virtual = 0) {
  return {
    virtual_device: virtual,
    device,
    memory_used_bytes: used,
    memory_total_bytes: 100,
    utilisation_percent: busy
  };
}

test('devices are summed; one that several virtual ones share counts once', () => {
  const usage = new Usage();
  const shared = [report('cpu:0', 10, 50), report('cpu:0', 20, 50, 1), report('cpu:1', 30, 100, 2)];
  usage.take({ session: 'a', devices: shared });
  expect(usage.samples('a')).toEqual([
    { at: NOW, memoryUsed: 60, memoryTotal: 200, utilisation: 75 }
  ]);
  usage.take({ session: 'a', devices: 'what' });
  usage.take(null);
  expect(usage.samples('a')).toHaveLength(1);
  usage.take({ session: 'a', devices: [] });
  expect(usage.devices('a')).toEqual([]);
});

test('of the past so much is kept as is drawn', async () => {
  const usage = new Usage();
  for (let second = 0; second < 600; second += 10) {
    usage.take({ session: 'a', devices: [report('cpu:0', second, 0)] });
    await settle(10_000);
  }
  const kept = usage.samples('a');
  expect(kept.length).toBeLessThanOrEqual(PAST_MS / 10_000 + 2);
  expect(kept[kept.length - 1]?.memoryUsed).toBe(590);
  usage.keep(id => id !== 'a');
  expect(usage.samples('a')).toEqual([]);
});

test('the first report is asked for once in a while, where there are devices', async () => {
  const asked: string[] = [];
  const usage = new Usage();
  const reports = new FirstReports(async id => {
    asked.push(id);
    if (asked.length === 1) {
      throw new Refused('there is no such operation', 404);
    }
    return { session: id, devices: [report('cpu:0', 1, 1)] };
  }, usage);
  const holds = sample();
  reports.look(sample({ id: 'b', devices: [] }));
  for (let n = 0; n < 5; n++) {
    reports.look(holds);
    await settle(1000);
  }
  expect(asked).toEqual(['a1']);
  await settle(AGAIN_MS);
  reports.look(holds);
  await settle();
  expect(usage.devices('a1')).toHaveLength(1);
  await settle(AGAIN_MS);
  reports.look(holds);
  expect(asked).toEqual(['a1', 'a1']);
});

test('virtual devices are named with the physical ones behind them', () => {
  const placed = (devices: string[], virtual: number) =>
    placedText(sample({ devices, virtual_devices: virtual }), TEXTS);
  expect(placed(['cpu:1'], 1)).toBe('cuda:0 on cpu:1');
  expect(placed(['cpu:1', 'cpu:0'], 2)).toBe('cuda:0 on cpu:1, cuda:1 on cpu:0');
  expect(placed(['g:0', 'g:1', 'g:2', 'g:3', 'g:4'], 5)).toBe(
    'cuda:0 on g:0, cuda:1 on g:1 and 3 more'
  );
  expect(placed(['g:0'], 4)).toBe('4 virtual on 1 physical (g:0)');
  expect(placed([], 1)).toBe('no device');
});

// -- checkpoints ---------------------------------------------------------------------------------

function stored(changes: Record<string, unknown> = {}): IStored {
  const at = '2026-01-01T10:00:00Z';
  const whole = { id: 'c1', name: 'good', at, level: 'process', restorable: true };
  return readStored({ ...whole, ...changes }) as IStored;
}

test('what can be done with a checkpoint depends on it and on the session', () => {
  const device = stored({ level: 'device', restorable: false });
  const suspended = sample({ state: 'suspended', process_state: 'suspended' });
  const ended = sample({ state: 'completed', process_state: 'completed' });
  expect([sample(), suspended, ended].map(each => canRestore(each, stored()))).toEqual([
    true,
    true,
    false
  ]);
  expect([sample(), suspended].map(each => canRestore(each, device))).toEqual([true, false]);
  expect(canRestore(sample(), stored({ restorable: false, damaged: 'cut' }))).toBe(false);
  expect(canFork(ended, stored())).toBe(true);
  expect(canFork(sample(), device)).toBe(false);
  expect(canFork(sample({ run: { output: '/o' } }), stored())).toBe(false);
  expect(readStored({ name: 'no id' })).toBeNull();
});

test('who goes back reads what is lost and what is kept', () => {
  expect(restoreText(sample(), stored(), false, NOW, TEXTS)).toBe(
    'Go back to checkpoint "good" (5 min ago)? Everything the session did since then is undone: ' +
      'variables, device state, the running cell. Outputs in the notebook stay as they are. Its ' +
      'present state is stored first, so this can be undone as well.'
  );
  expect(restoreText(sample(), stored(), true, NOW, TEXTS)).toContain('is given up');
  const device = stored({ level: 'device', restorable: false });
  expect(restoreText(sample(), device, false, NOW, TEXTS)).toContain('variables stay as they are');
});

test('a checkpoint without a name is known by its time, and never by an id alone', () => {
  const bare = stored({ name: '' });
  const [early, same] = [
    stored({ name: '', at: '2026-01-01T09:00:00Z' }),
    stored({ name: '', id: 'c2' })
  ];
  expect(storedName(stored(), NOW, TEXTS)).toBe('good');
  expect(storedName(bare, NOW, TEXTS)).toBe(`of ${clock(bare.at!)}`);
  expect(restoreText(sample(), bare, false, NOW, TEXTS)).toContain(
    `Go back to checkpoint of ${clock(bare.at!)} (5 min ago)?`
  );
  expect(storedNames([stored(), bare, early], NOW, TEXTS)).toEqual([
    'good, 5 min ago',
    `of ${clock(bare.at!)}, 5 min ago`,
    `of ${clock(early.at!)}, 65 min ago`
  ]);
  const alike = storedNames([bare, same], NOW, TEXTS);
  expect(alike.map(name => name.slice(-5))).toEqual([' (c1)', ' (c2)']);
});

test('who ends a session reads what is lost and what is kept', () => {
  expect(cancelText(sample(), NOW, TEXTS)).toBe(
    'End this session? Its variables are lost. Kept: files, outputs and what is stored ' +
      '(checkpoint 5 min ago: "good").'
  );
  expect(cancelText(sample({ last_checkpoint: null }), NOW, TEXTS)).toContain('cannot come back');
  expect(cancelText(sample({ run: { output: '/o' } }), NOW, TEXTS)).toContain('End this run?');
});

// -- the list ------------------------------------------------------------------------------------

test('those that have ended come last, the newest end first, and go after an hour', () => {
  const ended = (id: string, minutes: number) =>
    sample({ id, state: 'failed', updated_at: new Date(NOW - minutes * 60_000).toISOString() });
  const live = [sample({ id: 'runs' }), ended('a', 30), ended('b', 90)];
  const past = [ended('c', 10), ended('a', 30), sample({ id: 'not known to have ended' })];
  const ids = (changes = {}) =>
    chosen(live, past, { ...EVERYTHING, ...changes }, NOW, TEXTS).map(each => each.id);
  expect(ids()).toEqual(['runs', 'c', 'a']);
  expect(ids({ ended: true })).toEqual(['runs', 'c', 'a', 'b']);
  expect(ids({ group: 'ended' })).toEqual(['c', 'a']);
  expect(ids({ text: 'train FAILED' })).toEqual(['c', 'a']);
});

// -- plans of the server -------------------------------------------------------------------------

test('what the server plans for its kernels is read, whatever the answer lacks', () => {
  const at = '2026-01-01T10:00:00Z';
  const plan = { what: 'end', at, rule: 'kernel.idle', why: 'idle' };
  const plans = readPlans({ planned: { k1: plan, k2: 7, k3: {} }, again_s: 30 });
  expect([...plans.planned]).toEqual([['k1', { ...plan, at: Date.parse(at) }]]);
  expect(plans.askAfterS).toBe(30);
  for (const other of [null, {}, { planned: [] }, { planned: null, again_s: 'soon' }]) {
    expect(readPlans(other)).toEqual({ planned: new Map(), askAfterS: null });
  }
});

test('of two plans the one that comes first counts', () => {
  const plan = (at: number | null): IPlanned => ({ what: 'end', at, rule: '', why: '' });
  expect(first(null, null)).toBeNull();
  expect(first(plan(1), null)?.at).toBe(1);
  expect(first(null, plan(1))?.at).toBe(1);
  expect(first(plan(2), plan(1))?.at).toBe(1);
  expect(first(plan(2), plan(null))?.at).toBeNull();
});

test('plans are asked for with each kernel, and again as the server says', async () => {
  const plan: IPlanned = { what: 'end', at: 1, rule: 'kernel.idle', why: 'idle' };
  let asked = 0;
  let answer = async () => ({ planned: new Map([['k1', plan]]), askAfterS: null as number | null });
  const plans = new Plans(() => {
    asked += 1;
    return answer();
  });
  expect(plans.of(null)).toBeNull();
  expect(asked).toBe(0);
  expect(plans.of('k1')).toBeNull();
  await settle();
  expect(plans.of('k1')).toBe(plan);
  await settle(3600_000);
  expect(plans.of('k1')).toBe(plan);
  expect(asked).toBe(1);
  answer = async () => ({ planned: new Map(), askAfterS: 30 });
  expect(plans.of('k2')).toBeNull();
  await settle();
  expect(plans.of('k1')).toBeNull();
  expect(asked).toBe(2);
  answer = () => Promise.reject(new Error('it is away'));
  await settle(30_000);
  plans.of('k1');
  await settle();
  plans.of('k1');
  expect(asked).toBe(3);
  await settle(60_000);
  plans.of('k1');
  expect(asked).toBe(4);
});

const CLOSED = { height: 100, count: 1000, open: -1, openHeight: 500 };

test.each([
  [0, 600, CLOSED, [0, 10]],
  [5000, 600, CLOSED, [46, 60]],
  [9_999_999, 600, { ...CLOSED, count: 3 }, [2, 3]],
  [0, 600, { ...CLOSED, count: 0 }, [0, 0]],
  [0, 600, { ...CLOSED, open: 0 }, [0, 6]],
  [400, 600, { ...CLOSED, open: 2 }, [0, 10]],
  [5000, 600, { ...CLOSED, open: 0 }, [42, 56]]
])('rows in sight: %d px down, %d px high, %j', (top, height, rows, expected) => {
  expect(visible(top, height, rows)).toEqual(expected);
});

test('rows behind an open one are further down', () => {
  expect([0, 1, 2, 3].map(row => topOf(row, { ...CLOSED, open: 1 }))).toEqual([0, 100, 600, 700]);
  expect(['ArrowDown', 'ArrowUp', 'Home', 'End', 'x'].map(key => rowByKey(key, 2, 3))).toEqual([
    2,
    1,
    0,
    2,
    null
  ]);
});

test('with what an end can be taken back is read, and nothing is made up', () => {
  expect(sample({ undo_end: UNDO }).undo).toEqual({
    checkpoint: 'c1',
    name: '',
    until: Date.UTC(2026, 0, 2, 10)
  });
  expect(sample({ undo_end: { ...UNDO, until: null } }).undo?.until).toBeNull();
  for (const nothing of [undefined, null, 'c1', {}, { checkpoint: 7 }]) {
    expect(sample({ undo_end: nothing }).undo).toBeNull();
  }
});

test('a notebook that is back takes no other kernel away', () => {
  const back = readBack({ id: 'a1', kernel: { id: 'k', path: 'a.ipynb' } });
  expect(back).toEqual({ kernel: 'k', path: 'a.ipynb' });
  expect(nextOf(back, false, false)).toBe('open');
  expect(nextOf(back, true, false)).toBe('connect');
  expect(nextOf(back, true, true)).toBe('say');
  for (const other of [null, {}, { kernel: null }, { kernel: { id: 'k', path: null } }]) {
    expect(nextOf(readBack(other), false, false)).toBe('say');
  }
});
