import * as React from 'react';
import { useLayoutEffect, useRef } from 'react';

import { Log, plain } from '../../model/server/log';
import { inWords } from '../../model/server/refused';
import { ISession } from '../../model/sessions/session';
import { ITexts } from '../../model/words/words';
import { Trouble } from '../trouble';

/** Who is this near to the end, in px, sees new lines as they come. */
const NEAR = 24;

/** States of a session that has printed nothing, as it has not begun. */
const BEFORE = new Set(['queued', 'starting']);

function stateText(log: Log, session: ISession, texts: ITexts): string {
  if (log.state === 'loading' && BEFORE.has(session.state)) {
    return texts.__('It has not started yet; what it prints will be here.');
  }
  if (log.state === 'loading') {
    return texts.__('asking the scheduler');
  }
  if (log.text) {
    return log.state === 'ended' ? texts.__('The session has ended; this is all.') : '';
  }
  return session.kind === 'batch'
    ? texts.__('It has printed nothing so far.')
    : texts.__('Its kernel has printed nothing; what cells print is in the notebook.');
}

/** What the session's process printed, as it comes. */
export function LogView(props: {
  log: Log | null;
  session: ISession;
  texts: ITexts;
  retry: () => void;
  output: (session: ISession) => void;
}): JSX.Element | null {
  const { log, session, texts, retry, output } = props;
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  const text = React.useMemo(() => plain(log?.text ?? ''), [log?.text]);
  useLayoutEffect(() => {
    if (box.current && follows.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  }, [text]);
  if (!log) {
    return null;
  }
  const troubled = log.state === 'lost' || log.state === 'refused';
  const line = troubled ? '' : stateText(log, session, texts);
  const why =
    log.state === 'lost' ? texts.__('connection lost (%1)', inWords(log.why, texts)) : log.why;
  return (
    <div className="jp-Singularity-log">
      {session.run?.output && (
        <button type="button" onClick={() => output(session)}>
          {texts.__('Open output notebook')}
        </button>
      )}
      <Trouble why={troubled ? why : ''} texts={texts} retry={retry} />
      {log.cut && <p>{texts.__('Only the end is shown; the command line has all of it.')}</p>}
      {text && (
        <pre
          ref={box}
          tabIndex={0}
          role="group"
          aria-label={texts.__('Log of %1', session.name)}
          onScroll={event => {
            const { scrollHeight, scrollTop, clientHeight } = event.currentTarget;
            follows.current = scrollHeight - scrollTop - clientHeight < NEAR;
          }}
        >
          {text}
        </pre>
      )}
      {line && <p>{line}</p>}
    </div>
  );
}
