import { count, isObject, text } from '../server/json';
import { hasEnded, ICheckpoint, ISession, readCheckpoint } from './session';
import { ageText, ITexts, moment } from '../words/words';

/** A checkpoint as the list of them has it. */
export interface IStored extends ICheckpoint {
  /** What it takes in the store. */
  storedBytes: number;
  /** Why its level is not higher; empty: there is nothing to say. */
  reason: string;
  /** What was found wrong with it; empty: nothing. */
  damaged: string;
  /** Whether a session can come back from it. */
  restorable: boolean;
}

/** One of `GET checkpoints`; null: it is nothing that this page can show. */
export function readStored(value: unknown): IStored | null {
  const checkpoint = readCheckpoint(value);
  if (!isObject(value) || !checkpoint?.id) {
    return null;
  }
  return {
    ...checkpoint,
    storedBytes: count(value.stored_bytes),
    reason: text(value.reason),
    damaged: text(value.damaged),
    restorable: value.restorable === true
  };
}

/** The name of a checkpoint, or of when it is where it has none: at `now`, as people read it. */
export function storedName(stored: ICheckpoint, now: number, texts: ITexts): string {
  return (
    stored.name || (stored.at === null ? stored.id : texts.__('of %1', moment(stored.at, now)))
  );
}

/** Names of checkpoints to choose from, each with what it was made for and its age, and with its id
 * where two read alike. */
export function storedNames(all: readonly IStored[], now: number, texts: ITexts): string[] {
  const names = all.map(each =>
    [storedName(each, now, texts), causeText(each, now, texts), ageText(each.at, now, texts)]
      .filter(Boolean)
      .join(', ')
  );
  return names.map((name, n) =>
    names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (${all[n]?.id})`
  );
}

/** What a checkpoint without a name was made for; empty: somebody asked for it. */
export function causeText(stored: ICheckpoint, now: number, texts: ITexts): string {
  switch (stored.name ? '' : stored.cause) {
    case 'periodic':
      return texts.__('by itself');
    case 'restore':
      return texts.__('before restore');
    case 'move':
      return texts.__('before a move');
    case 'drain':
      return texts.__('drain');
    case 'suspend':
      return stored.at === null
        ? texts.__('suspended')
        : texts.__('suspended %1', moment(stored.at, now));
    default:
      return '';
  }
}

/** What is in a checkpoint, as people read it. */
export function levelText(level: string, texts: ITexts): string {
  switch (level) {
    case 'process':
      return texts.__('everything');
    case 'device':
      return texts.__('device state only');
    case 'files':
      return texts.__('files only');
    default:
      return level;
  }
}

/** Whether it comes back, in a few words; empty: nobody has tried. */
export function proofText(stored: IStored, now: number, texts: ITexts): string {
  if (stored.unproved) {
    return texts.__('could not be proved: %1', stored.unproved);
  }
  return stored.provedAt === null
    ? ''
    : texts.__('proved %1', ageText(stored.provedAt, now, texts));
}

/** Whether a session may go back to a checkpoint: as a whole, or its device state while it lives. */
export function canRestore(session: ISession, stored: IStored): boolean {
  const whole = stored.restorable && ['live', 'suspended'].includes(session.processState);
  const device = stored.level === 'device' && !stored.damaged && session.processState === 'live';
  return !hasEnded(session) && (whole || device);
}

/** Whether a second session may begin there; a second run would write the same output. */
export function canFork(session: ISession, stored: IStored): boolean {
  return stored.restorable && !session.run;
}
