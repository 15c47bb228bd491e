import * as React from 'react';
import { useRef } from 'react';

import { Feed, linkText } from '../model/server/feed';
import { Followed } from '../model/sessions/followed';
import { deviceText, ITexts, look, stateWord } from '../model/words/words';
import { useChanges } from './changes';
import { StateIcon } from './icons';

/** The button in a notebook's toolbar: the state of its session, and a menu of what can be done
 * with it now. Nothing is shown for a notebook without a session. */
export function SessionButton(props: {
  followed: Followed;
  feed: Feed;
  texts: ITexts;
  /** Open the menu below the button. */
  open: (button: HTMLElement) => void;
}): JSX.Element | null {
  const { followed, feed, texts, open } = props;
  const button = useRef<HTMLButtonElement>(null);
  useChanges([listener => followed.follow(listener), listener => feed.subscribe(listener)]);
  const { session } = followed;
  if (!session) {
    return null;
  }
  const word = stateWord(session.state, texts);
  const link = feed.link.state === 'lost' ? linkText(feed.link, 0, texts) : '';
  const about = [link, session.reason, deviceText(session, texts)].filter(Boolean).join('\n');
  return (
    <button
      ref={button}
      type="button"
      className={`jp-Singularity-button${link ? ' jp-mod-stale' : ''}`}
      title={about}
      aria-label={texts.__('Session: %1. %2', word, about)}
      aria-haspopup="menu"
      data-state={session.state}
      onClick={() => button.current && open(button.current)}
    >
      <StateIcon look={look(session.state)} />
      <span>{word}</span>
      <span className="jp-Singularity-caret" aria-hidden="true" />
    </button>
  );
}
