import * as React from 'react';

import { Load } from '../../model/server/load';
import { ISession } from '../../model/sessions/session';
import {
  canFork,
  canRestore,
  causeText,
  IStored,
  levelText,
  proofText,
  storedName
} from '../../model/sessions/stored';
import { ageText, bytes, ITexts, moment } from '../../model/words/words';
import { Trouble } from '../trouble';

/** What one can do with a checkpoint. */
export interface IStoredActions {
  restore: (session: ISession, stored: IStored) => void;
  fork: (session: ISession, stored: IStored) => void;
}

function Checkpoint(props: {
  stored: IStored;
  session: ISession;
  now: number;
  texts: ITexts;
  actions: IStoredActions;
}): JSX.Element {
  const { stored, session, now, texts, actions } = props;
  const name = storedName(stored, now, texts);
  const when = stored.at === null ? '' : moment(stored.at, now);
  const size = stored.storedBytes
    ? texts.__('%1, %2 in the store', bytes(stored.bytes), bytes(stored.storedBytes))
    : bytes(stored.bytes);
  const proof = proofText(stored, now, texts);
  return (
    <li className={stored.damaged || stored.unproved ? 'jp-mod-damaged' : ''}>
      <div className="jp-Singularity-entryHead">
        <strong title={stored.id}>
          {stored.name || causeText(stored, now, texts) || texts.__('without a name')}
        </strong>
        <span title={when}>{ageText(stored.at, now, texts)}</span>
      </div>
      <p>{[levelText(stored.level, texts), size].filter(Boolean).join(' · ')}</p>
      {stored.damaged && <p>{texts.__('damaged: %1', stored.damaged)}</p>}
      {!stored.damaged && proof && <p>{proof}</p>}
      {!stored.damaged && stored.reason && <p>{stored.reason}</p>}
      <div className="jp-Singularity-verbs">
        {canRestore(session, stored) && (
          <button
            type="button"
            aria-label={texts.__('Restore %1', name)}
            onClick={() => actions.restore(session, stored)}
          >
            {texts.__('Restore')}
          </button>
        )}
        {canFork(session, stored) && (
          <button
            type="button"
            aria-label={texts.__('Fork %1', name)}
            onClick={() => actions.fork(session, stored)}
          >
            {texts.__('Fork')}
          </button>
        )}
      </div>
    </li>
  );
}

/** What the store has of a session, newest first. */
export function Checkpoints(props: {
  load: Load<IStored[]>;
  session: ISession;
  now: number;
  texts: ITexts;
  actions: IStoredActions;
}): JSX.Element {
  const { load, session, now, texts, actions } = props;
  return (
    <>
      <Trouble why={load.error} texts={texts} retry={() => void load.refresh()} />
      {load.value === null && load.busy && <p>{texts.__('asking the scheduler')}</p>}
      {load.value?.length === 0 && (
        <p>{texts.__('Nothing of it is stored. Checkpoint it to have a state to go back to.')}</p>
      )}
      <ul className="jp-Singularity-stored" aria-label={texts.__('Checkpoints')}>
        {load.value?.map(stored => (
          <Checkpoint
            key={stored.id}
            stored={stored}
            session={session}
            now={now}
            texts={texts}
            actions={actions}
          />
        ))}
      </ul>
    </>
  );
}
