import * as React from 'react';

import { Feed } from '../model/feed';
import { hasEnded, ISession } from '../model/session';
import { Sessions } from '../model/sessions';
import { Verb } from '../model/verbs';
import { Whys } from '../model/whys';
import { ITexts, linkText } from '../model/words';
import { Card, CARD_HEIGHT } from './card';
import { useChanges, useNow } from './changes';
import { VirtualList } from './virtual';

/** The sidebar: how current it is, and a card for each session. */
export function Panel(props: {
  sessions: Sessions;
  feed: Feed;
  whys: Whys;
  texts: ITexts;
  act: (verb: Verb, session: ISession) => void;
}): JSX.Element {
  const { sessions, feed, whys, texts, act } = props;
  useChanges([
    listener => sessions.subscribe(listener),
    listener => feed.subscribe(listener),
    listener => whys.subscribe(listener)
  ]);
  const now = useNow(30_000);
  const all = sessions.all;
  const running = all.filter(session => !hasEnded(session)).length;
  const line = linkText(feed.link, sessions.unreadable, texts);
  const empty = feed.link.state === 'live' && !all.length;
  return (
    <div className="jp-Singularity-body">
      <h2>{texts.__('Sessions')}</h2>
      <p role="status" className={`jp-Singularity-link${line ? ' jp-mod-trouble' : ''}`}>
        {line ||
          (empty
            ? texts.__('no session yet: run a notebook')
            : texts.__('%1 running, %2 in all', running, all.length))}
      </p>
      <VirtualList
        count={all.length}
        rowHeight={CARD_HEIGHT}
        label={texts.__('Sessions')}
        rowKey={index => all[index]?.id ?? String(index)}
        row={index => {
          const session = all[index];
          return session ? (
            <Card
              session={session}
              why={whys.sentence(session)}
              now={now}
              texts={texts}
              act={act}
            />
          ) : (
            <></>
          );
        }}
      />
    </div>
  );
}
