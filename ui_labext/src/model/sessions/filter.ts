import { hasEnded, ISession } from './session';
import { ITexts, stateWord } from '../words/words';

/** So long an ended session stays in the list by itself. */
export const STAYS_MS = 3600_000;

/** What a person wants to see. */
export interface IFilter {
  /** Words that are all found in a session. */
  text: string;
  group: Group;
  kind: Kind;
  /** Whether those that ended long ago are wanted too. */
  ended: boolean;
}

export type Group = 'any' | 'running' | 'waiting' | 'paused' | 'ended';
export type Kind = 'any' | 'interactive' | 'batch';

export const GROUPS: readonly Group[] = ['any', 'running', 'waiting', 'paused', 'ended'];
export const KINDS: readonly Kind[] = ['any', 'interactive', 'batch'];

export const EVERYTHING: IFilter = { text: '', group: 'any', kind: 'any', ended: false };

const WAITING = new Set([
  'queued',
  'starting',
  'waiting',
  'attaching',
  'resuming',
  'migrating',
  'resizing'
]);
const PAUSED = new Set(['parking', 'parked', 'suspending', 'suspended']);

/** The group of a state; a state that this page does not know counts as running. */
export function groupOf(session: ISession): Group {
  if (hasEnded(session)) {
    return 'ended';
  }
  return WAITING.has(session.state) ? 'waiting' : PAUSED.has(session.state) ? 'paused' : 'running';
}

/** How many sessions have devices, wait, rest and have ended: "1 with a device, 2 waiting". */
export function countText(sessions: readonly ISession[], texts: ITexts): string {
  const [held, waiting, ended] = [
    (session: ISession) => !hasEnded(session) && session.devices.length > 0,
    (session: ISession) => !session.devices.length && groupOf(session) === 'waiting',
    hasEnded
  ].map(fits => sessions.filter(fits).length) as [number, number, number];
  const rest = sessions.length - held - waiting - ended;
  return [
    held ? texts._n('%1 with a device', '%1 with devices', held) : '',
    waiting ? texts.__('%1 waiting', waiting) : '',
    rest ? texts.__('%1 at rest', rest) : '',
    ended ? texts.__('%1 ended', ended) : ''
  ]
    .filter(Boolean)
    .join(', ');
}

export function groupWord(group: Group, texts: ITexts): string {
  switch (group) {
    case 'any':
      return texts.__('all states');
    case 'running':
      return texts.__('running');
    case 'waiting':
      return texts.__('waiting');
    case 'paused':
      return texts.__('parked, suspended');
    case 'ended':
      return texts.__('ended');
  }
}

export function kindWord(kind: Kind, texts: ITexts): string {
  switch (kind) {
    case 'any':
      return texts.__('all kinds');
    case 'interactive':
      return texts.__('notebooks');
    case 'batch':
      return texts.__('batch runs');
  }
}

function contains(session: ISession, words: string[], texts: ITexts): boolean {
  const { name, id, kind, tier, state, reason, node, devices, run } = session;
  const run_ = run ? [run.notebook, run.command, run.output] : [];
  const all = [name, id, kind, tier, state, stateWord(state, texts), reason, node];
  const text = [...all, ...devices, ...run_].join('\n').toLowerCase();
  return words.every(word => text.includes(word));
}

/**
 * The sessions to show, in order: `live` as the scheduler tells them, then those of `past` that are
 * not among them and have ended. `now`: ms since 1970.
 */
export function chosen(
  live: readonly ISession[],
  past: readonly ISession[],
  filter: IFilter,
  now: number,
  texts: ITexts
): ISession[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const known = new Set(live.map(session => session.id));
  const others = past.filter(session => hasEnded(session) && !known.has(session.id));
  const all = others.length ? [...live, ...others] : live;
  const shown = all.filter(
    session =>
      (filter.group === 'any' || groupOf(session) === filter.group) &&
      (filter.kind === 'any' || session.kind === filter.kind) &&
      (filter.ended || !hasEnded(session) || now - (session.updatedAt ?? 0) < STAYS_MS) &&
      (!words.length || contains(session, words, texts))
  );
  // `live` is in order already, those that have ended are last.
  const first = shown.findIndex(hasEnded);
  return first < 0
    ? shown
    : [
        ...shown.slice(0, first),
        ...shown.slice(first).sort((a, b) => (b.updatedAt ?? 0) - (a.updatedAt ?? 0))
      ];
}
