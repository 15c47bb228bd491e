import * as React from 'react';

import { Feed, linkText } from '../model/server/feed';
import { ISession } from '../model/sessions/session';
import { checkpointAge, deviceText, ITexts, look, stateWord } from '../model/words/words';
import { useChanges, useNow } from './changes';
import { StateIcon } from './icons';

/** What the status bar says of the session of the active notebook. */
export function StatusItem(props: {
  session: ISession;
  /** The line about a lost connection; "": all is well. */
  link: string;
  now: number;
  texts: ITexts;
  open: () => void;
}): JSX.Element {
  const { session, link, now, texts, open } = props;
  const word = stateWord(session.state, texts);
  const parts = [deviceText(session, texts), session.tier, checkpointAge(session, now, texts)];
  const text = [word, ...parts.filter(Boolean)].join(' · ');
  const tip = [link, session.reason].filter(Boolean).join('\n');
  return (
    <button
      type="button"
      className={`jp-Singularity-status${link ? ' jp-mod-stale' : ''}`}
      title={tip}
      aria-label={texts.__('Session %1: %2. %3', session.name, text, tip)}
      data-state={session.state}
      onClick={open}
    >
      <StateIcon look={look(session.state)} />
      <span>{text}</span>
    </button>
  );
}

/** Keeps the item current; nothing is shown for a notebook without a session. */
export function Status(props: {
  feed: Feed;
  /** The session of the active notebook, and when that became another or changed. */
  session: () => ISession | null;
  subscribe: (listener: () => void) => () => void;
  texts: ITexts;
  open: () => void;
}): JSX.Element | null {
  const { feed, subscribe, texts, open } = props;
  useChanges([listener => feed.subscribe(listener), subscribe]);
  const now = useNow(30_000);
  const session = props.session();
  if (!session) {
    return null;
  }
  const link = feed.link.state === 'lost' ? linkText(feed.link, 0, texts) : '';
  return <StatusItem session={session} link={link} now={now} texts={texts} open={open} />;
}
