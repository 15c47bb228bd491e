import { IPlanned, ISession } from '../sessions/session';
import { IStanding } from '../sessions/standing';
import { duration, ITexts, stateWord } from './words';

/** A change that comes by itself is announced this long before. */
export const AHEAD_MS = 120_000;

/** What the banner of a notebook says. */
export interface INotice {
  kind: 'taken' | 'returned' | 'planned';
  /** What it is about: one that was dismissed stays so while this is the same. */
  key: string;
  /** Said once, and read aloud. */
  text: string;
  /** Until when, in ms since 1970, seconds are counted; null: nothing is counted. */
  at: number | null;
  /** What can be done about it. */
  offers: 'keep' | 'resume' | null;
  /** Of one that was taken: when the last report was made before that; null: there was none. */
  lossAt?: number | null;
}

const TAKEN = new Set(['parking', 'parked', 'suspending', 'suspended', 'resuming']);
const WAITS = new Set(['waiting', 'attaching']);
const STORED = new Set(['suspending', 'suspended', 'resuming']);

/** Whether a session that held devices or a node does not any more. */
export function isTaken(session: ISession): boolean {
  return TAKEN.has(session.state);
}

/** "you are next, about 3 min"; empty: nothing is known. */
function whenText(standing: IStanding | null, texts: ITexts): string {
  if (!standing) {
    return '';
  }
  const { place, highS } = standing;
  const parts = [
    place === 1 ? texts.__('you are next') : place ? texts.__('place %1 in the queue', place) : '',
    highS === null ? '' : texts.__('about %1', duration(highS, texts))
  ];
  return parts.filter(Boolean).join(', ');
}

/** Who has the devices, or why they are gone. */
function whoText(session: ISession, standing: IStanding | null, texts: ITexts): string {
  if (!standing?.by || !standing.rule.startsWith('preempt.')) {
    return texts.__('Your session is %1: %2.', stateWord(session.state, texts), session.reason);
  }
  const to = standing.tier ? `${standing.by} (${standing.tier})` : standing.by;
  const when = whenText(standing, texts);
  return [
    texts._n(
      'Your device went to %2.',
      'Your %1 devices went to %2.',
      Math.max(1, session.virtualDevices),
      to
    ),
    when ? texts.__('Nothing is lost; %1.', when) : texts.__('Nothing is lost.')
  ].join(' ');
}

function takenNotice(
  session: ISession,
  standing: IStanding | null,
  lossAt: number | null,
  texts: ITexts
): INotice {
  const back = session.heldBack
    ? texts.__('Resume it to go on.')
    : WAITS.has(session.state)
      ? texts.__('Your cell goes on by itself.')
      : session.state === 'resuming' || session.place !== null
        ? texts.__('It goes on by itself.')
        : texts.__('Run any cell to come back.');
  return {
    kind: 'taken',
    key: 'taken',
    text: `${whoText(session, standing, texts)} ${back}`,
    at: null,
    offers: session.heldBack ? 'resume' : null,
    lossAt
  };
}

/** What was lost, and what came back, at the session's last return from the store. */
function lossText(session: ISession, texts: ITexts): string {
  const { loss } = session;
  const back = loss?.back.length ? texts.__('Back: %1.', loss.back.join(', ')) : '';
  const lost = loss?.lost.length
    ? texts.__('Not back: %1.', loss.lost.join(', '))
    : texts.__('Nothing was lost.');
  const undone = loss?.rolledBack ? texts.__('What it did after the checkpoint is undone.') : '';
  return [texts.__('Your session is back.'), undone, lost, back].filter(Boolean).join(' ');
}

/** Whether somebody can prevent it by keeping the session alive. */
function isPreventable(planned: IPlanned): boolean {
  return planned.rule.startsWith('idle.');
}

/** What comes by itself soon; null: nothing at `now` (ms). */
function plannedNotice(session: ISession, now: number, texts: ITexts): INotice | null {
  const { planned } = session;
  if (!planned || (planned.at !== null && planned.at - now > AHEAD_MS)) {
    return null;
  }
  const keeps = isPreventable(planned);
  if (keeps && planned.at === null) {
    return null;
  }
  const what =
    planned.what === 'park'
      ? texts.__('Its devices are about to be freed: %1. Nothing is lost.', planned.why)
      : planned.what === 'suspend'
        ? texts.__('It is about to go into the store: %1. Nothing is lost.', planned.why)
        : texts.__('It is about to end: %1.', planned.why);
  return {
    kind: 'planned',
    key: `planned ${planned.what} ${planned.rule}`,
    text: what,
    at: planned.at,
    offers: keeps ? 'keep' : null
  };
}

/**
 * The notice after a change of the notebook's session, or as time goes by; null: none any more,
 * undefined: what is shown stays. `shown` is what is shown now.
 */
export function nextNotice(
  before: ISession | null,
  now: ISession,
  standing: IStanding | null,
  shown: INotice | null,
  at: number,
  texts: ITexts
): INotice | null | undefined {
  const known = before ?? now;
  const lossAt = shown?.kind === 'taken' ? (shown.lossAt ?? null) : (known.loss?.at ?? null);
  // The report is made while it is on its way, and read once it is there: maybe without a device.
  if (now.loss && now.loss.at !== lossAt && !STORED.has(now.state)) {
    const key = `returned ${now.loss.at}`;
    return { kind: 'returned', key, text: lossText(now, texts), at: null, offers: null };
  }
  if (shown?.kind === 'returned' && before?.state === now.state) {
    return undefined;
  }
  const preempted = standing?.rule.startsWith('preempt.') || shown?.kind === 'taken';
  if (isTaken(now) || (WAITS.has(now.state) && preempted)) {
    return takenNotice(now, standing, lossAt, texts);
  }
  const planned = plannedNotice(now, at, texts);
  if (planned) {
    return planned;
  }
  return shown && shown.kind !== 'returned' ? null : undefined;
}
