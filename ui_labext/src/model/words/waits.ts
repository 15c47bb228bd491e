import { ISession } from '../sessions/session';
import { ITexts } from './words';

/** States in which a cell that was run does not go on: it waits for a device, or its process is
 * in the store. */
const WAITS = new Set([
  'queued',
  'waiting',
  'attaching',
  'migrating',
  'resizing',
  'suspending',
  'suspended',
  'resuming'
]);

/** Why the cells that were run do not go on; "": they do. */
export function cellsWait(session: ISession | null, texts: ITexts): string {
  if (!session || !WAITS.has(session.state)) {
    return '';
  }
  switch (session.state) {
    case 'queued':
    case 'waiting':
    case 'attaching':
      return texts.__('Waits for a device: %1', session.reason);
    case 'migrating':
      return texts.__('Waits until the session has moved: %1', session.reason);
    case 'resizing':
      return texts.__('Waits until the session has other devices: %1', session.reason);
    default:
      return texts.__('Waits until the session is back: %1', session.reason);
  }
}
