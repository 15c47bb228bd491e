import { ISession } from '../sessions/session';
import { IStanding } from '../sessions/standing';
import { duration, ITexts } from './words';

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

/** "you are next, about 3 min"; empty: nothing is known. */
export function whenText(standing: IStanding | null, texts: ITexts): string {
  if (!standing) {
    return '';
  }
  const { place, highS } = standing;
  const parts = [
    place === 1 ? texts.__('you are next') : place ? texts.__('place %1 in the queue', place) : '',
    highS === null
      ? ''
      : highS < 1
        ? texts.__('within a second')
        : texts.__('about %1', duration(highS, texts))
  ];
  return parts.filter(Boolean).join(', ');
}
