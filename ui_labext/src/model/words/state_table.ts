// Written by tools/derive.py from `core/values/states.py`; change those, then run ./dev docs.

import { ITexts } from './words';

/** What a state means, in a sentence; "": it is one that this page does not know. */
export function stateMeaning(state: string, texts: ITexts): string {
  switch (state) {
    case 'queued':
      return texts.__('Accepted, not started yet');
    case 'starting':
      return texts.__('Its process is being started');
    case 'ready':
      return texts.__('Its process runs and uses no device yet');
    case 'waiting':
      return texts.__('Waits for its devices; the code that called a device is blocked meanwhile');
    case 'attaching':
      return texts.__('Its devices are being attached and its state restored on them');
    case 'running':
      return texts.__('Its process runs and holds its devices');
    case 'parking':
      return texts.__('Its device state is being saved and its devices freed');
    case 'parked':
      return texts.__(
        'Its device state is kept in host memory; the next device call brings it back'
      );
    case 'resizing':
      return texts.__(
        'It goes on with more or fewer physical devices behind the same virtual ones'
      );
    case 'migrating':
      return texts.__('It is being moved to other devices or to another node');
    case 'suspending':
      return texts.__('Its process image and device state are being written to the store');
    case 'suspended':
      return texts.__('Everything of it is in the store; it uses no node until it is called back');
    case 'resuming':
      return texts.__('Its process is being restored from the store');
    case 'completed':
      return texts.__('Ended normally');
    case 'failed':
      return texts.__('Ended with an error; the reason says which');
    case 'cancelled':
      return texts.__('Ended on request');
    default:
      return '';
  }
}
