import * as React from 'react';

import { IProgress, ISession } from '../model/session';
import { isOffered, Verb, verbCaption, verbLabel, VERBS } from '../model/verbs';
import { checkpointText, deviceText, ITexts, look, progressText, stateWord } from '../model/words';
import { StateIcon } from './icons';

/** Height of a card in the list, in px; `base.css` draws it in this height. */
export const CARD_HEIGHT = 148;

function Progress(props: { progress: IProgress; texts: ITexts }): JSX.Element {
  const { progress, texts } = props;
  const text = progressText(progress, texts);
  return (
    <div className="jp-Singularity-progress" title={text}>
      <progress
        aria-label={texts.__('Transfer')}
        aria-valuetext={text}
        max={progress.bytesTotal || 1}
        value={progress.bytesDone}
      />
      <span>{text}</span>
    </div>
  );
}

/** One session: what it is, why, what it has, what one can do. */
export function Card(props: {
  session: ISession;
  /** Why it waits, with the estimate; "": its reason is all there is. */
  why: string;
  now: number;
  texts: ITexts;
  act: (verb: Verb, session: ISession) => void;
}): JSX.Element {
  const { session, why, now, texts, act } = props;
  const title = `jp-singularity-${session.id}`;
  const place = session.place ? texts.__('place %1 in the queue', session.place) : '';
  const facts = [place, deviceText(session, texts), session.node].filter(Boolean).join(' · ');
  const reason = why || session.reason;
  return (
    <section className="jp-Singularity-card" data-session={session.id} aria-labelledby={title}>
      <h3 id={title}>
        <StateIcon look={look(session.state)} />
        <span className={`jp-Singularity-state jp-mod-${look(session.state).colour}`}>
          {stateWord(session.state, texts)}
        </span>
        <span className="jp-Singularity-name" title={session.id}>
          {session.name}
        </span>
        <span className="jp-Singularity-tier">
          {session.kind === 'batch' ? `${texts.__('batch')} ${session.tier}` : session.tier}
        </span>
      </h3>
      <p className="jp-Singularity-reason" title={reason}>
        {reason}
      </p>
      <p className="jp-Singularity-facts" title={facts}>
        {facts}
      </p>
      {session.progress ? (
        <Progress progress={session.progress} texts={texts} />
      ) : (
        <p className="jp-Singularity-facts">{checkpointText(session, now, texts)}</p>
      )}
      <div className="jp-Singularity-verbs">
        {VERBS.filter(verb => isOffered(verb, session)).map(verb => (
          <button
            key={verb}
            type="button"
            title={verbCaption(verb, texts)}
            aria-label={texts.__('%1 %2', verbLabel(verb, texts), session.name)}
            onClick={() => act(verb, session)}
          >
            {verbLabel(verb, texts)}
          </button>
        ))}
      </div>
    </section>
  );
}
