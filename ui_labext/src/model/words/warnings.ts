import { ISession } from '../sessions/session';
import { IStored, storedName } from '../sessions/stored';
import { ageText, checkpointText, ITexts } from './words';

/** What is lost and what is kept when a session is ended. */
export function cancelText(session: ISession, now: number, texts: ITexts): string {
  const lost = session.run
    ? texts.__('End this run? What it has not written yet is lost.')
    : texts.__('End this session? Its variables are lost.');
  const kept = session.checkpoint
    ? texts.__('Kept: files, outputs and what is stored (%1).', checkpointText(session, now, texts))
    : texts.__('Kept: files and outputs; nothing of it was stored, so it cannot come back.');
  return `${lost} ${kept}`;
}

/** What is lost and what is kept when a session goes back to a checkpoint. */
export function restoreText(
  session: ISession,
  stored: IStored,
  discard: boolean,
  now: number,
  texts: ITexts
): string {
  const name = stored.name ? `"${stored.name}"` : storedName(stored, now, texts);
  const age = ageText(stored.at, now, texts);
  if (!stored.restorable && stored.level === 'device') {
    return texts.__(
      'Put the device state of checkpoint %1 (%2) back? What is on its devices now is stored first. Python variables stay as they are.',
      name,
      age
    );
  }
  const back = texts.__(
    'Go back to checkpoint %1 (%2)? Everything the session did since then is undone: variables, device state, the running cell. Outputs in the notebook stay as they are.',
    name,
    age
  );
  const kept = discard
    ? texts.__('Its present state is given up.')
    : session.processState === 'suspended'
      ? texts.__('Its present state stays in the store.')
      : texts.__('Its present state is stored first, so this can be undone as well.');
  return `${back} ${kept}`;
}
