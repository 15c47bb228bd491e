import { hasEnded, IPlanned, ISession } from '../sessions/session';
import { IStanding } from '../sessions/standing';
import { whenText } from './waits';
import { ITexts, stateWord } from './words';

/** A change that comes by itself is announced this long before. */
export const AHEAD_MS = 120_000;

/** A report stays for so long, and at the end of a cell that began after that it goes. The cell
 * that brought its session back began at about the time of the report. */
export const READ_MS = 15_000;

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
  /** Nobody took anything and nothing waits: it is no warning. */
  isCalm?: boolean;
  /** Of one that was taken: when the last report was made before that; null: there was none. */
  lossAt?: number | null;
  /** Goes by itself at the end of a cell: of one that begins at this time (ms since 1970) or later,
   * or of the one that is running. Missing: it does not. */
  goesAfter?: number | 'thisCell';
}

const TAKEN = new Set(['parking', 'parked', 'suspending', 'suspended', 'resuming']);
const WAITS = new Set(['waiting', 'attaching']);
const STORED = new Set(['suspending', 'suspended', 'resuming']);

/** Whether a session that held devices or a node does not any more. */
export function isTaken(session: ISession): boolean {
  return TAKEN.has(session.state);
}

/** Who has the devices, or why they are gone. */
function whoText(session: ISession, standing: IStanding | null, texts: ITexts): string {
  if (!standing?.by || !standing.rule.startsWith('preempt.')) {
    return texts.__('Your session is %1: %2.', stateWord(session.state, texts), session.reason);
  }
  const to = standing.tier ? `${standing.by} (${standing.tier})` : standing.by;
  const when = whenText(standing, texts);
  const count = Math.max(1, session.virtualDevices);
  return [
    standing.rule === 'preempt.idle'
      ? texts._n(
          'Your device was idle and went to %2.',
          'Your %1 devices were idle and went to %2.',
          count,
          to
        )
      : texts._n('Your device went to %2.', 'Your %1 devices went to %2.', count, to),
    when ? texts.__('Nothing is lost; %1.', when) : texts.__('Nothing is lost.')
  ].join(' ');
}

/** Whether a session that is away went there without being sent by somebody else, and nothing of it
 * waits: it comes back when it is wanted. */
function isCalm(session: ISession, standing: IStanding | null): boolean {
  const taken = Boolean(standing?.rule.startsWith('preempt.'));
  return !taken && !session.heldBack && !WAITS.has(session.state);
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
    isCalm: isCalm(session, standing),
    lossAt
  };
}

/** What was lost, and what came back, at the session's last return from the store. */
function lossText(session: ISession, texts: ITexts): string {
  const { loss } = session;
  const back = loss?.back.length ? texts.__('Back: %1.', loss.back.join(', ')) : '';
  const lost = loss?.lost.length
    ? texts.__('Not as it was: %1.', loss.lost.join('; '))
    : texts.__('Nothing was lost.');
  const undone = loss?.rolledBack ? texts.__('What it did after the checkpoint is undone.') : '';
  return [texts.__('Your session is back.'), undone, lost, back].filter(Boolean).join(' ');
}

/** A report of a return as it is after a change; null: it has been there for long enough. One that
 * says what is not as it was stays until it is dismissed, or something else is to be said. */
function agedReport(shown: INotice, before: ISession, now: ISession, at: number): INotice | null {
  const { goesAfter } = shown;
  if (typeof goesAfter === 'number' && at >= goesAfter && now.busy && !before.busy) {
    return { ...shown, goesAfter: 'thisCell' };
  }
  return goesAfter === 'thisCell' && !now.busy ? null : shown;
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
 * undefined: what is there stays. `before` is null when it is another session, of which nothing that
 * is there is true.
 */
export function nextNotice(
  before: ISession | null,
  now: ISession,
  standing: IStanding | null,
  there: INotice | null,
  at: number,
  texts: ITexts
): INotice | null | undefined {
  if (hasEnded(now)) {
    return there ? null : undefined;
  }
  const known = before ?? now;
  const shown = before ? there : null;
  const lossAt = shown?.kind === 'taken' ? (shown.lossAt ?? null) : (known.loss?.at ?? null);
  // The report is made while it is on its way, and read once it is there: maybe without a device.
  if (now.loss && now.loss.at !== lossAt && !STORED.has(now.state)) {
    const key = `returned ${now.loss.at}`;
    const text = lossText(now, texts);
    const back: INotice = { kind: 'returned', key, text, at: null, offers: null };
    return now.loss.lost.length ? back : { ...back, goesAfter: at + READ_MS };
  }
  const report = before && shown?.kind === 'returned' ? agedReport(shown, before, now, at) : null;
  /** What becomes of what is there, if nothing else is to be said. */
  const left = report === there ? undefined : report;
  if (report && before?.state === now.state) {
    return left;
  }
  const preempted = standing?.rule.startsWith('preempt.') || shown?.kind === 'taken';
  if (isTaken(now) || (WAITS.has(now.state) && preempted)) {
    return takenNotice(now, standing, lossAt, texts);
  }
  const planned = plannedNotice(now, at, texts);
  if (planned) {
    return planned;
  }
  return left;
}
