import * as React from 'react';

import { inWords } from '../model/server/refused';
import { ITexts } from '../model/words/words';

/** One line about what the server could not do, and a button to ask again. */
export function Trouble(props: {
  why: string;
  texts: ITexts;
  retry: () => void;
}): JSX.Element | null {
  const { why, texts, retry } = props;
  return why ? (
    <p className="jp-Singularity-trouble" role="status">
      <span>{inWords(why, texts)}</span>
      <button type="button" onClick={retry}>
        {texts.__('Try again')}
      </button>
    </p>
  ) : null;
}
