import * as React from 'react';

import { Details, Part, PARTS } from '../../model/sessions/details';
import { ISession } from '../../model/sessions/session';
import { Usage } from '../../model/server/usage';
import { ITexts } from '../../model/words/words';
import { useChanges } from '../changes';
import { Devices } from './devices';
import { LogView } from './log';
import { Checkpoints, IStoredActions } from './stored';
import { Timeline } from './timeline';

/** Height of what an open card has below it, in px at the usual font size. */
export const DETAILS_HEIGHT = 320;

function partWord(part: Part, texts: ITexts): string {
  switch (part) {
    case 'checkpoints':
      return texts.__('Checkpoints');
    case 'timeline':
      return texts.__('Timeline');
    case 'log':
      return texts.__('Log');
    case 'devices':
      return texts.__('Devices');
  }
}

/** What one can do in an open card. */
export interface IDetailsActions extends IStoredActions {
  /** Open the notebook that a run writes. */
  output: (session: ISession) => void;
}

/** The lower half of an open card: one part at a time, chosen by tabs. */
export function DetailsView(props: {
  details: Details;
  session: ISession;
  usage: Usage;
  now: number;
  texts: ITexts;
  actions: IDetailsActions;
}): JSX.Element {
  const { details, session, usage, now, texts, actions } = props;
  useChanges([listener => details.subscribe(listener)]);
  const tabs = React.useRef<HTMLDivElement>(null);
  const id = `jp-singularity-details-${session.id}`;
  const choose = (part: Part | undefined) => {
    if (part) {
      details.show(part);
      tabs.current?.querySelector<HTMLElement>(`[data-part=${part}]`)?.focus();
    }
  };
  const pressed = (event: React.KeyboardEvent) => {
    const at = PARTS.indexOf(details.part);
    const to: Record<string, number> = {
      ArrowLeft: (at + PARTS.length - 1) % PARTS.length,
      ArrowRight: (at + 1) % PARTS.length,
      Home: 0,
      End: PARTS.length - 1
    };
    const next = to[event.key];
    if (next !== undefined) {
      event.preventDefault();
      choose(PARTS[next]);
    }
  };
  return (
    <div className="jp-Singularity-details" data-keys="">
      <div
        ref={tabs}
        role="tablist"
        aria-label={texts.__('Details of %1', session.name)}
        className="jp-Singularity-tabs"
        onKeyDown={pressed}
      >
        {PARTS.map(part => (
          <button
            key={part}
            type="button"
            role="tab"
            id={`${id}-${part}`}
            data-part={part}
            aria-selected={part === details.part}
            aria-controls={id}
            tabIndex={part === details.part ? 0 : -1}
            onClick={() => choose(part)}
          >
            {partWord(part, texts)}
          </button>
        ))}
      </div>
      <div
        id={id}
        role="tabpanel"
        aria-labelledby={`${id}-${details.part}`}
        tabIndex={0}
        className="jp-Singularity-part"
      >
        {details.part === 'checkpoints' && (
          <Checkpoints
            load={details.checkpoints}
            session={session}
            now={now}
            texts={texts}
            actions={actions}
          />
        )}
        {details.part === 'timeline' && (
          <Timeline history={details.history} session={session} now={now} texts={texts} />
        )}
        {details.part === 'log' && (
          <LogView
            log={details.log}
            session={session}
            texts={texts}
            retry={() => details.refresh()}
            output={actions.output}
          />
        )}
        {details.part === 'devices' && (
          <Devices devices={usage.devices(session.id)} session={session} texts={texts} />
        )}
      </div>
    </div>
  );
}
