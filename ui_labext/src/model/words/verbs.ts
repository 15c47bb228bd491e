import { hasEnded, ISession, otherSizes } from '../sessions/session';
import { Condition, OFFERED, Verb } from './verb_table';

export * from './verb_table';

/** All that a page knows, the best one first. */
export const TIERS: readonly string[] = ['premium', 'standard', 'basic'];

/** For how long a session may be kept alive from a menu, in seconds. */
export const KEEP_S = [30 * 60, 2 * 3600, 4 * 3600] as const;

/** What is said to a verb: the keys of its body in the scheduler's API. */
export type Said = Record<string, unknown>;

/** A request to the server. */
export interface ICall {
  method: 'POST' | 'DELETE';
  /** Below `sessions/`. */
  path: string;
  body: Said | null;
}

/** The request behind a verb. */
export function call(verb: Verb, id: string, said: Said): ICall {
  const session = encodeURIComponent(id);
  return verb === 'cancel'
    ? { method: 'DELETE', path: session, body: null }
    : { method: 'POST', path: `${session}/${verb}`, body: said };
}

/** Where to migrate to: a device where `word` has a colon or is a number ("cuda:1", "1"), else a
 * node; any other device when it is empty. */
export function target(word: string): Said {
  const said = word.trim();
  if (!said) {
    return {};
  }
  if (/^\d+$/.test(said)) {
    return { device: Number(said) };
  }
  return said.includes(':') ? { device: said } : { node: said };
}

/** Whether a session is so that a verb makes sense. */
function isSo(condition: Condition, session: ISession): boolean {
  const live = session.processState === 'live';
  const stored = session.checkpoints > 0 || session.checkpoint !== null;
  switch (condition) {
    case 'live':
      return live;
    case 'withDevices':
      return live && session.deviceState === 'held';
    case 'liveOrSuspended':
      return live || session.processState === 'suspended';
    case 'resizable':
      return !hasEnded(session) && otherSizes(session).length > 0;
    case 'resumable':
      return (
        session.heldBack ||
        session.processState === 'suspended' ||
        (live && (session.deviceState === 'none' || session.deviceState === 'parked'))
      );
    case 'returnable':
      return stored && (live || session.processState === 'suspended');
    case 'forkable':
      return stored && !session.run;
    case 'notEnded':
      return !hasEnded(session);
    case 'reopenable':
      return session.undo !== null;
  }
}

/** Whether a verb makes sense in the session's state; the server has the last word. */
export function isOffered(verb: Verb, session: ISession): boolean {
  return isSo(OFFERED[verb], session);
}
