import { ISession } from './session';
import { ITexts, stateWord } from './words';

/** What the banner of a notebook says. */
export interface INotice {
  kind: 'taken' | 'returned';
  text: string;
}

const TAKEN = new Set(['parking', 'parked', 'suspending', 'suspended', 'resuming']);

/** Whether a session that held devices or a node does not any more. */
export function isTaken(session: ISession): boolean {
  return TAKEN.has(session.state);
}

/** What came back, and what did not, at the session's last return from the store. */
export function lossText(session: ISession, texts: ITexts): string {
  const { loss } = session;
  const back = loss?.back.length ? texts.__('Back: %1.', loss.back.join(', ')) : '';
  const lost = loss?.lost.length
    ? texts.__('Not back: %1.', loss.lost.join(', '))
    : texts.__('Nothing was lost.');
  const undone = loss?.rolledBack ? texts.__('What it did after the checkpoint is undone.') : '';
  return [texts.__('Your session is back.'), back, lost, undone].filter(Boolean).join(' ');
}

/**
 * The notice after a change of the notebook's session; null: none any more, undefined: what is
 * shown stays. `shown` is what is shown now.
 */
export function nextNotice(
  before: ISession | null,
  now: ISession,
  shown: INotice | null,
  texts: ITexts
): INotice | null | undefined {
  if (isTaken(now)) {
    const word = stateWord(now.state, texts);
    const taken = texts.__('Your session is %1: %2.', word, now.reason);
    const back = now.heldBack
      ? texts.__('Resume it to go on.')
      : texts.__('Run any cell to come back.');
    return { kind: 'taken', text: `${taken} ${back}` };
  }
  if (now.loss && before && now.loss.at !== before.loss?.at) {
    return { kind: 'returned', text: lossText(now, texts) };
  }
  return shown?.kind === 'taken' ? null : undefined;
}
