import { hasEnded, ISession, otherSizes } from '../sessions/session';
import { ITexts } from './words';

/** What a person can do with a session. */
export type Verb =
  | 'checkpoint'
  | 'suspend'
  | 'resume'
  | 'migrate'
  | 'resize'
  | 'park'
  | 'keep'
  | 'tier'
  | 'restore'
  | 'fork'
  | 'cancel'
  | 'reopen';

/** In the order of menus. */
export const VERBS: readonly Verb[] = [
  'checkpoint',
  'suspend',
  'resume',
  'migrate',
  'resize',
  'park',
  'keep',
  'tier',
  'restore',
  'fork',
  'cancel',
  'reopen'
];

/** Those with a button on the card; the others are in its menu. */
export const BUTTONS: readonly Verb[] = ['checkpoint', 'suspend', 'resume', 'reopen'];

/** All that a page knows, the best one first. */
export const TIERS: readonly string[] = ['premium', 'standard', 'basic'];

/** For how long a session may be kept alive from a menu, in seconds. */
export const KEEP_S = [30 * 60, 2 * 3600, 4 * 3600] as const;

/** What is said to a verb: the keys of its body in the scheduler's API. */
export type Said = Record<string, unknown>;

/** The keys that each verb takes. */
export const KEYS: Record<Verb, readonly string[]> = {
  checkpoint: ['name'],
  suspend: ['name'],
  resume: ['checkpoint', 'node'],
  migrate: ['device', 'node', 'cluster'],
  resize: ['devices'],
  park: [],
  keep: ['for_s'],
  tier: ['tier'],
  restore: ['checkpoint', 'discard'],
  fork: ['checkpoint', 'name'],
  cancel: [],
  reopen: []
};

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

/** Whether a verb makes sense in the session's state; the server has the last word. */
export function isOffered(verb: Verb, session: ISession): boolean {
  const live = session.processState === 'live';
  const stored = session.checkpoints > 0 || session.checkpoint !== null;
  switch (verb) {
    case 'checkpoint':
    case 'suspend':
    case 'keep':
      return live;
    case 'park':
      return live && session.deviceState === 'held';
    case 'migrate':
      return live || session.processState === 'suspended';
    case 'resize':
      return !hasEnded(session) && otherSizes(session).length > 0;
    case 'resume':
      return (
        session.heldBack ||
        session.processState === 'suspended' ||
        (live && (session.deviceState === 'none' || session.deviceState === 'parked'))
      );
    case 'restore':
      return stored && (live || session.processState === 'suspended');
    case 'fork':
      return stored && !session.run;
    case 'tier':
    case 'cancel':
      return !hasEnded(session);
    case 'reopen':
      return session.undo !== null;
  }
}

/** The verb as a button has it. */
export function verbLabel(verb: Verb, texts: ITexts): string {
  switch (verb) {
    case 'checkpoint':
      return texts.__('Checkpoint');
    case 'suspend':
      return texts.__('Suspend');
    case 'resume':
      return texts.__('Resume');
    case 'migrate':
      return texts.__('Migrate');
    case 'resize':
      return texts.__('Resize');
    case 'park':
      return texts.__('Park');
    case 'keep':
      return texts.__('Keep alive');
    case 'tier':
      return texts.__('Change tier');
    case 'restore':
      return texts.__('Restore');
    case 'fork':
      return texts.__('Fork');
    case 'cancel':
      return texts.__('Cancel');
    case 'reopen':
      return texts.__('Take back');
  }
}

/** The verb as a command has it, where it is not plain what it is done with. */
export function commandLabel(verb: Verb, texts: ITexts): string {
  switch (verb) {
    case 'keep':
      return texts.__('Keep session alive');
    case 'tier':
      return texts.__('Change tier of session');
    case 'reopen':
      return texts.__('Take back the end of session');
    default:
      return texts.__('%1 session', verbLabel(verb, texts));
  }
}

/** What the verb does, in a sentence. */
export function verbCaption(verb: Verb, texts: ITexts): string {
  switch (verb) {
    case 'checkpoint':
      return texts.__('Store it; execution goes on');
    case 'suspend':
      return texts.__('Put everything of it into the store and free its node; nothing is lost');
    case 'resume':
      return texts.__('Take devices now; a suspended session comes back');
    case 'migrate':
      return texts.__('Go on with other devices or on another node');
    case 'resize':
      return texts.__(
        'Go on with more or fewer physical devices; what its code sees stays the same'
      );
    case 'park':
      return texts.__('Free its devices until the next device call; nothing is lost');
    case 'keep':
      return texts.__('Let nobody park or suspend it because it is idle, for a while');
    case 'tier':
      return texts.__('Give it another tier: what it is promised, and who goes before it');
    case 'restore':
      return texts.__('Go back to one of its checkpoints');
    case 'fork':
      return texts.__('Begin a second session where a checkpoint of this one is');
    case 'cancel':
      return texts.__('End it; its variables are lost, but for its newest checkpoint');
    case 'reopen':
      return texts.__('Take its end back: it is suspended again as of its newest checkpoint');
  }
}
