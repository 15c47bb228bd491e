import * as React from 'react';
import { useEffect } from 'react';

import { Announcer } from '../model/words/announce';
import { Feed, linkText } from '../model/server/feed';
import { chosen, countText } from '../model/sessions/filter';
import { ISession } from '../model/sessions/session';
import { Sessions } from '../model/sessions/sessions';
import { Sidebar } from '../model/sessions/sidebar';
import { FirstReports } from '../model/server/usage';
import { Verb } from '../model/words/verbs';
import { Whys } from '../model/words/whys';
import { ITexts } from '../model/words/words';
import { Card, CARD_HEIGHT, titleOf } from './cards/card';
import { useChanges, useNow } from './changes';
import { DETAILS_HEIGHT, DetailsView, IDetailsActions } from './cards/details';
import { FilterBar } from './filter';
import { Trouble } from './trouble';
import { IRowState, VirtualList } from './cards/virtual';

/** What one can do in the sidebar. */
export interface IPanelActions extends IDetailsActions {
  act: (verb: Verb, session: ISession) => void;
  /** Show all that can be done with a session, at an element. */
  menu: (session: ISession, at: HTMLElement) => void;
}

/** The sidebar: how current it is, what is to be shown, and a card for each session. */
export function Panel(props: {
  sessions: Sessions;
  feed: Feed;
  whys: Whys;
  sidebar: Sidebar;
  announcer: Announcer;
  reports: FirstReports;
  texts: ITexts;
  actions: IPanelActions;
}): JSX.Element {
  const { sessions, feed, whys, sidebar, announcer, reports, texts, actions } = props;
  useChanges([
    listener => sessions.subscribe(listener),
    listener => sessions.usage.subscribe(listener),
    listener => feed.subscribe(listener),
    listener => whys.subscribe(listener),
    listener => sidebar.subscribe(listener),
    listener => announcer.subscribe(listener)
  ]);
  const now = useNow(30_000);
  const live = feed.link.state === 'live';
  const { past, filter, details } = sidebar;
  useEffect(() => {
    if (live) {
      void past.refresh(); // what ended while nobody listened
    }
  }, [live]);

  const shown = chosen(sessions.all, past.value?.items ?? [], filter, now, texts);
  const byId = new Map(shown.map(session => [session.id, session]));
  const line = linkText(feed.link, sessions.unreadable, texts);
  const none = sessions.all.length
    ? texts.__('no session fits the filter')
    : texts.__('no session yet: run a notebook');
  const counts = countText(sessions.all, texts);
  const row = (id: string, state: IRowState) => {
    const session = byId.get(id);
    if (!session) {
      return <></>;
    }
    reports.look(session);
    return (
      <>
        <Card
          session={session}
          why={whys.of(session)}
          samples={sessions.usage.samples(id)}
          now={now}
          texts={texts}
          state={state}
          act={actions.act}
          toggle={() => sidebar.toggle(id)}
          menu={actions.menu}
        />
        {state.isOpen && details && (
          <DetailsView
            key={id}
            details={details}
            session={session}
            usage={sessions.usage}
            now={now}
            texts={texts}
            actions={actions}
          />
        )}
      </>
    );
  };
  return (
    <div className="jp-Singularity-body">
      <h2>{texts.__('Sessions')}</h2>
      <div className={`jp-Singularity-link${line ? ' jp-mod-trouble' : ''}`}>
        <span>{line || (live && !shown.length ? none : counts)}</span>
        {feed.link.state === 'lost' && (
          <button type="button" onClick={() => feed.retry()}>
            {texts.__('Try again')}
          </button>
        )}
      </div>
      <div role="status" className="jp-Singularity-said">
        {line || announcer.text}
      </div>
      <FilterBar filter={filter} texts={texts} choose={change => sidebar.choose(change)} />
      <VirtualList
        keys={shown.map(session => session.id)}
        rowHeight={CARD_HEIGHT}
        openHeight={CARD_HEIGHT + DETAILS_HEIGHT}
        open={details?.session ?? null}
        label={texts.__('Sessions')}
        reveal={{ key: sidebar.reveal.session, times: sidebar.reveal.times }}
        titleId={titleOf}
        row={row}
        toggle={id => sidebar.toggle(id)}
      />
      <Trouble
        why={filter.ended || live ? past.error : ''}
        texts={texts}
        retry={() => void past.refresh()}
      />
      {filter.ended && past.value?.next && (
        <button
          type="button"
          className="jp-Singularity-older"
          disabled={past.busy}
          onClick={() => void past.older()}
        >
          {texts.__('Load older ones')}
        </button>
      )}
    </div>
  );
}
