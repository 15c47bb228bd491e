import { hasEnded, ISession } from './session';

/** What JupyterLab says of a kernel of which it has heard nothing (yet). */
const UNHEARD = new Set(['unknown', 'connecting', 'disconnected']);

/** A session that is away answers nothing; one that works answers late. */
const AWAY = new Set([
  'parking',
  'parked',
  'migrating',
  'resizing',
  'suspending',
  'suspended',
  'resuming',
  'waiting',
  'attaching'
]);

/**
 * The word for the status of a notebook's kernel, where `heard` is the one of JupyterLab.
 *
 * The scheduler knows more than the connection: a session that is parked or in the store is as
 * good as there, and one in the middle of a cell does not answer a page that was just opened.
 * `current`: the page hears the scheduler. A kernel that died or is restarted says so as ever.
 */
export function kernelStatus(heard: string, session: ISession | null, current: boolean): string {
  if (!session || hasEnded(session) || !UNHEARD.has(heard)) {
    return heard;
  }
  if (AWAY.has(session.state) || (current && heard === 'unknown')) {
    return session.busy ? 'busy' : 'idle';
  }
  return heard;
}
