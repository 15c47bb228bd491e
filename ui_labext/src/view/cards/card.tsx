import * as React from 'react';

import { IProgress, ISession } from '../../model/sessions/session';
import { ISample } from '../../model/server/usage';
import { BUTTONS, isOffered, Verb, verbCaption, verbLabel } from '../../model/words/verbs';
import { cardReason, IWhy } from '../../model/words/whys';
import { stateMeaning } from '../../model/words/state_table';
import {
  activityText,
  checkpointText,
  ITexts,
  look,
  placedText,
  progressText,
  stateWord
} from '../../model/words/words';
import { Glyph, StateIcon } from '../icons';
import { Spark } from './spark';
import { IRowState } from './virtual';

/** Height of a closed card in the list, in px at the usual font size; `base.css` fits it. */
export const CARD_HEIGHT = 176;

/** The id of the element that names a session's card. */
export function titleOf(session: string): string {
  return `jp-singularity-${session}`;
}

function Progress(props: { progress: IProgress; texts: ITexts }): JSX.Element {
  const { progress, texts } = props;
  const text = progressText(progress, texts);
  return (
    <div className="jp-Singularity-progress">
      <progress
        aria-label={texts.__('Transfer')}
        aria-valuetext={text}
        max={progress.bytesTotal || 1}
        value={progress.bytesDone}
      />
      <p className="jp-Singularity-facts" title={text}>
        {text}
      </p>
    </div>
  );
}

/** One session: what it is, why, what it has, what one can do. */
export function Card(props: {
  session: ISession;
  /** Why it waits, with the estimate; null: its reason is all there is. */
  why: IWhy | null;
  samples: readonly ISample[];
  now: number;
  texts: ITexts;
  state: IRowState;
  act: (verb: Verb, session: ISession) => void;
  toggle: () => void;
  /** Show all that can be done with it, at an element. */
  menu: (session: ISession, at: HTMLElement) => void;
}): JSX.Element {
  const { session, why, samples, now, texts, state, act, toggle, menu } = props;
  const { tabIndex, isOpen } = state;
  const place = session.place ? texts.__('place %1 in the queue', session.place) : '';
  const facts = [place, placedText(session, texts), session.node].filter(Boolean).join(' · ');
  const kind = session.kind === 'batch' ? texts.__('%1 batch', session.tier) : session.tier;
  const { part } = session;
  const nodes = part ? texts.__('%1 of %2 nodes', part.number + 1, part.parts) : '';
  return (
    <div
      className="jp-Singularity-card"
      data-session={session.id}
      style={isOpen ? undefined : { height: '100%' }}
    >
      <div className="jp-Singularity-head">
        <button
          type="button"
          className="jp-Singularity-glyph"
          tabIndex={tabIndex}
          aria-expanded={isOpen}
          aria-label={texts.__('Details of %1', session.name)}
          onClick={toggle}
        >
          <Glyph name={isOpen ? 'open' : 'closed'} />
        </button>
        <h3 id={titleOf(session.id)} title={`${session.name} (${session.id})`}>
          <StateIcon look={look(session.state)} />
          <span className="jp-Singularity-name">{session.name}</span>
        </h3>
        <button
          type="button"
          className="jp-Singularity-glyph"
          tabIndex={tabIndex}
          aria-haspopup="menu"
          aria-label={texts.__('All actions for %1', session.name)}
          title={texts.__('All actions')}
          onClick={event => menu(session, event.currentTarget)}
        >
          <Glyph name="more" />
        </button>
      </div>
      <div className="jp-Singularity-line">
        <p className="jp-Singularity-facts">
          <span
            className={`jp-Singularity-state jp-mod-${look(session.state).colour}`}
            title={stateMeaning(session.state, texts)}
          >
            {stateWord(session.state, texts)}
          </span>
          {` · ${[kind, nodes, activityText(session, texts)].filter(Boolean).join(' · ')}`}
        </p>
        {session.devices.length > 0 && <Spark samples={samples} now={now} texts={texts} />}
      </div>
      <p className="jp-Singularity-reason" title={why?.sentence || session.reason}>
        {cardReason(session, why, texts)}
      </p>
      <p className="jp-Singularity-devices" title={facts}>
        {facts}
      </p>
      {session.progress ? (
        <Progress progress={session.progress} texts={texts} />
      ) : (
        <p className="jp-Singularity-facts" title={session.checkpoint?.name}>
          {checkpointText(session, now, texts)}
        </p>
      )}
      <div className="jp-Singularity-verbs">
        {BUTTONS.filter(verb => isOffered(verb, session)).map(verb => (
          <button
            key={verb}
            type="button"
            tabIndex={tabIndex}
            title={verbCaption(verb, texts)}
            aria-label={texts.__('%1 %2', verbLabel(verb, texts), session.name)}
            onClick={() => act(verb, session)}
          >
            {verbLabel(verb, texts)}
          </button>
        ))}
      </div>
    </div>
  );
}
