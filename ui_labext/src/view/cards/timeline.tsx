import * as React from 'react';

import { changeKey, IChange } from '../../model/sessions/history';
import { Paged } from '../../model/server/load';
import { ISession } from '../../model/sessions/session';
import { duration, ITexts, look, moment, stateWord } from '../../model/words/words';
import { StateIcon } from '../icons';
import { Trouble } from '../trouble';

/** How long a state lasted, until the change after it or `now`; "": unknown. */
export function lasted(
  change: IChange,
  after: IChange | undefined,
  now: number,
  ended: boolean,
  texts: ITexts
): string {
  const end = after ? after.at : ended ? null : now;
  return change.at === null || end === null ? '' : duration((end - change.at) / 1000, texts);
}

/** The states of a session, newest first, with what its last return from the store brought back. */
export function Timeline(props: {
  history: Paged<IChange>;
  session: ISession;
  now: number;
  texts: ITexts;
}): JSX.Element {
  const { history, session, now, texts } = props;
  const changes = history.value?.items ?? [];
  const { loss } = session;
  // Its last return from the store; the reason there says what is not back.
  const returned = loss?.at ? changes.findIndex(each => (each.at ?? 0) <= (loss.at ?? 0)) : -1;
  return (
    <>
      <Trouble why={history.error} texts={texts} retry={() => void history.refresh()} />
      {!history.value && history.busy && <p>{texts.__('asking the scheduler')}</p>}
      <ol className="jp-Singularity-timeline" reversed aria-label={texts.__('Timeline')}>
        {changes.map((change, number) => {
          const ended = ['completed', 'failed', 'cancelled'].includes(change.state);
          const long = lasted(change, changes[number - 1], now, ended, texts);
          return (
            <li key={`${changeKey(change)} ${changes.length - number}`}>
              <div className="jp-Singularity-entryHead">
                <strong>
                  <StateIcon look={look(change.state)} /> {stateWord(change.state, texts)}
                </strong>
                <span>
                  {[change.at === null ? '' : moment(change.at, now), long]
                    .filter(Boolean)
                    .join(' · ')}
                </span>
              </div>
              <p>{change.reason}</p>
              {number === returned && loss?.back.length ? (
                <p>{texts.__('Back: %1.', loss.back.join(', '))}</p>
              ) : null}
            </li>
          );
        })}
      </ol>
      {history.value?.next && (
        <button type="button" disabled={history.busy} onClick={() => void history.older()}>
          {texts.__('Load older')}
        </button>
      )}
    </>
  );
}
