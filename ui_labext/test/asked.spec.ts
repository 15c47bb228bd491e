import { Asked } from '../src/model/server/asked';
import { Own, Refused } from '../src/model/server/refused';

/** What is asked for with each key, and what comes of it: an error that is raised, or an answer. */
async function keysOf(comes: (Error | null)[], names: string[] = []): Promise<string[]> {
  let made = 0;
  const asked = new Asked(() => `key ${(made += 1)}`);
  const keys: string[] = [];
  for (const [at, error] of comes.entries()) {
    const done = asked.once(names[at] ?? 'fork a', async key => {
      keys.push(key);
      if (error) {
        throw error;
      }
    });
    await (error ? expect(done).rejects.toBe(error) : done);
  }
  return keys;
}

test.each([
  ['no answer came', new Refused(Own.noAnswer)],
  ['the connection broke', new TypeError('NetworkError')],
  ['a proxy in between lost it', new Refused('503 Service Unavailable', 503)],
  ['the scheduler does not know', new Refused('whether it did is not known', 503)]
])(
  'what is asked for again after an answer that was lost (%s) has the same key',
  async (_, lost) => {
    expect(await keysOf([lost, lost, null, null])).toEqual(['key 1', 'key 1', 'key 1', 'key 2']);
  }
);

test('what was refused was not done: asked for again it is something new', async () => {
  const refused = new Refused('there is no such checkpoint', 404);
  expect(await keysOf([refused, null])).toEqual(['key 1', 'key 2']);
});

test('another request has another key', async () => {
  const lost = new Refused(Own.noAnswer);
  const names = ['fork a', 'fork b', 'fork a'];
  expect(await keysOf([lost, null, null], names)).toEqual(['key 1', 'key 2', 'key 1']);
});
