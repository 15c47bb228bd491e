import * as React from 'react';

import { GROUPS, groupWord, IFilter, KINDS, kindWord } from '../model/sessions/filter';
import { ITexts } from '../model/words/words';

/** What is to be shown: words, state, kind, and whether what ended long ago is. */
export function FilterBar(props: {
  filter: IFilter;
  texts: ITexts;
  choose: (change: Partial<IFilter>) => void;
}): JSX.Element {
  const { filter, texts, choose } = props;
  return (
    <div className="jp-Singularity-filter" role="search" aria-label={texts.__('Filter sessions')}>
      <input
        type="search"
        placeholder={texts.__('Filter by name, device, reason')}
        aria-label={texts.__('Words that sessions contain')}
        value={filter.text}
        onChange={event => choose({ text: event.target.value })}
        onKeyDown={event => {
          if (event.key === 'Escape' && filter.text) {
            event.preventDefault();
            choose({ text: '' });
          }
        }}
      />
      <select
        aria-label={texts.__('State')}
        value={filter.group}
        onChange={event => choose({ group: event.target.value as IFilter['group'] })}
      >
        {GROUPS.map(group => (
          <option key={group} value={group}>
            {groupWord(group, texts)}
          </option>
        ))}
      </select>
      <select
        aria-label={texts.__('Kind')}
        value={filter.kind}
        onChange={event => choose({ kind: event.target.value as IFilter['kind'] })}
      >
        {KINDS.map(kind => (
          <option key={kind} value={kind}>
            {kindWord(kind, texts)}
          </option>
        ))}
      </select>
      <label title={texts.__('Also those that ended more than an hour ago')}>
        <input
          type="checkbox"
          checked={filter.ended}
          onChange={event => choose({ ended: event.target.checked })}
        />
        {texts.__('ended')}
      </label>
    </div>
  );
}
