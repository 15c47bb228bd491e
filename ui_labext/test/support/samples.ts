import { ISession, readSession } from '../../src/model/sessions/session';
import { IStanding } from '../../src/model/sessions/standing';
import { IWhy } from '../../src/model/words/whys';
import { ITexts } from '../../src/model/words/words';

function fill(text: string, args: unknown[]): string {
  return text.replace(/%(\d)/g, (_, n) => String(args[Number(n) - 1])).replace(/%%/g, '%');
}

/** English, filled in as JupyterLab's gettext does it. */
export const TEXTS: ITexts = {
  __: (text, ...args) => fill(text, args),
  _n: (one, many, count, ...args) => fill(count === 1 ? one : many, [count, ...args])
};

/** What is said of why a session waits, of whose turn nothing is known. */
export function why(sentence: string, turn: Partial<IStanding> = {}): IWhy {
  const standing = { by: '', tier: '', rule: '', place: null, highS: null, ...turn };
  return { sentence, standing };
}

/** The JSON of a session, as the scheduler sends it. */
export const DOCUMENT = {
  id: 'a1',
  user: 'alice',
  kind: 'interactive',
  name: 'train.ipynb',
  tier: 'standard',
  state: 'running',
  process_state: 'live',
  device_state: 'held',
  reason: 'its code called a device',
  node: 'local',
  devices: ['cpu:0'],
  virtual_devices: 1,
  queue: null,
  created_at: '2026-01-01T10:00:00.000+00:00',
  updated_at: '2026-01-01T10:00:05.000+00:00',
  held_back: false,
  last_checkpoint: {
    id: 'c1',
    name: 'good',
    at: '2026-01-01T10:00:00.000+00:00',
    level: 'process',
    bytes: 1024
  },
  checkpoints: 1,
  run: null,
  part: null,
  progress: null,
  loss: null
};

/** A session; `changes` are of its JSON. */
export function sample(changes: Record<string, unknown> = {}): ISession {
  const session = readSession({ ...DOCUMENT, ...changes });
  if (!session) {
    throw new Error('no session');
  }
  return session;
}

/** Of a document: that an end can be taken back, and what a session is that has ended. */
export const UNDO = { checkpoint: 'c1', name: '', until: '2026-01-02T10:00:00.000+00:00' };
export const OVER = {
  state: 'completed',
  process_state: 'completed',
  device_state: 'none',
  devices: []
};
