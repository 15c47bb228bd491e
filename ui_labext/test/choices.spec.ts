import { Choice, choices } from '../src/model/words/choices';
import { OpenTiers, TIERS_MS } from '../src/model/words/tiers';
import { call, isOffered, KEYS, TIERS, verbLabel } from '../src/model/words/verbs';
import { deviceText, placedText, sizeText } from '../src/model/words/words';
import { sample, TEXTS } from './support/samples';

const SHARED = {
  virtual_devices: 4,
  devices: ['cpu:0', 'cpu:0', 'cpu:1', 'cpu:1'],
  resizable: { min: 1, max: 4, counts: [4, 2, 1] }
};

function offered(changes: Record<string, unknown>, open: readonly string[] = TIERS) {
  return (verb: 'keep' | 'tier' | 'resize') => choices(verb, sample(changes), open);
}

// -- resize --------------------------------------------------------------------------------------

test('the sizes that a session can go on with are offered, but the one that it has', () => {
  expect(offered(SHARED)('resize')).toEqual([{ devices: 1 }, { devices: 4 }]);
  const parked = { ...SHARED, devices: [], state: 'parked', device_state: 'parked' };
  expect(offered(parked)('resize')).toEqual([{ devices: 1 }, { devices: 2 }, { devices: 4 }]);
});

test('resize is offered where the scheduler says that it can be done', () => {
  expect(isOffered('resize', sample(SHARED))).toBe(true);
  expect(isOffered('resize', sample({ ...SHARED, resizable: null }))).toBe(false);
  expect(isOffered('resize', sample({ ...SHARED, resizable: undefined }))).toBe(false);
  const one = { min: 2, max: 2, counts: [2] };
  expect(isOffered('resize', sample({ ...SHARED, resizable: one }))).toBe(false);
  const ended = { ...SHARED, state: 'completed', process_state: 'completed' };
  expect(isOffered('resize', sample(ended))).toBe(false);
});

test('what is no number of devices is left out', () => {
  const odd = { min: 1, max: 4, counts: ['2', 0, -1, 1.5, null, 4, 4] };
  expect(sample({ ...SHARED, resizable: odd }).sizes).toEqual([4]);
  expect(sample({ ...SHARED, resizable: 'yes' }).sizes).toEqual([]);
  expect(sample({ ...SHARED, resizable: { min: 1, max: 4 } }).sizes).toEqual([]);
});

test('a resize is one request with the number of physical devices', () => {
  expect(KEYS.resize).toEqual(['devices']);
  expect(call('resize', 'a1', { devices: 2 })).toEqual({
    method: 'POST',
    path: 'a1/resize',
    body: { devices: 2 }
  });
  expect(verbLabel('resize', TEXTS)).toBe('Resize');
  expect([1, 4].map(size => sizeText(size, TEXTS))).toEqual([
    'on 1 physical device',
    'on 4 physical devices'
  ]);
});

test('virtual devices that share physical ones are counted, with the names of those', () => {
  expect(placedText(sample(SHARED), TEXTS)).toBe('4 virtual on 2 physical (cpu:0, cpu:1)');
  expect(deviceText(sample(SHARED), TEXTS)).toBe('4 virtual on 2 physical (cpu:0, cpu:1)');
  const one = { virtual_devices: 4, devices: Array(4).fill('cpu:0') };
  expect(placedText(sample(one), TEXTS)).toBe('4 virtual on 1 physical (cpu:0)');
  const many = ['g:0', 'g:1', 'g:2', 'g:3', 'g:0', 'g:1', 'g:2', 'g:3'];
  expect(placedText(sample({ virtual_devices: 8, devices: many }), TEXTS)).toBe(
    '8 virtual on 4 physical (g:0, g:1 and 2 more)'
  );
});

// -- tiers ---------------------------------------------------------------------------------------

function tiersOf(found: Choice[] | null): unknown[] {
  return (found ?? []).map(each => each.tier);
}

test('tiers that are open are offered, but the one that it has', () => {
  expect(tiersOf(offered({})('tier'))).toEqual(['premium', 'basic']);
  expect(tiersOf(offered({}, ['basic', 'standard'])('tier'))).toEqual(['basic']);
  expect(tiersOf(offered({}, ['standard'])('tier'))).toEqual([]);
  expect(tiersOf(offered({ tier: 'gold' }, ['basic', 'silver', 'premium'])('tier'))).toEqual([
    'premium',
    'basic',
    'silver'
  ]);
});

test('it is asked which tiers are open once in a while; before there is an answer all are', async () => {
  jest.useFakeTimers({ now: 0 });
  const asked: string[] = [];
  let answer: () => Promise<string[]> = async () => ['basic'];
  const tiers = new OpenTiers(user => {
    asked.push(user);
    return answer();
  });
  expect(tiers.of('alice')).toEqual(TIERS);
  expect(await Promise.all([tiers.look('alice'), tiers.look('alice')])).toEqual([
    ['basic'],
    ['basic']
  ]);
  expect(tiers.of('alice')).toEqual(['basic']);
  expect(tiers.of('bob')).toEqual(TIERS);
  expect(asked).toEqual(['alice']);

  jest.advanceTimersByTime(TIERS_MS);
  answer = async () => Promise.reject(new Error('it is away'));
  expect(await tiers.look('alice')).toEqual(['basic']);
  expect(asked).toEqual(['alice', 'alice']);
  jest.useRealTimers();
});
