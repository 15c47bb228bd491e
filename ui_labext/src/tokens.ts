import { Token } from '@lumino/coreutils';

import { Api } from './api';
import { Behind } from './model/sessions/behind';
import { Feed } from './model/server/feed';
import { Sessions } from './model/sessions/sessions';
import { Sidebar } from './model/sessions/sidebar';
import { OpenTiers } from './model/words/tiers';

/** What the plugins of this extension, and other extensions, share. */
export interface ISingularity {
  /** This user's sessions, kept current. */
  readonly sessions: Sessions;
  /** How current they are. */
  readonly feed: Feed;
  /** Which session is behind a kernel. */
  readonly behind: Behind;
  /** What is looked at in the sidebar. */
  readonly sidebar: Sidebar;
  /** Which tiers are open to their user. */
  readonly tiers: OpenTiers;
  readonly api: Api;
}

export const ISingularity = new Token<ISingularity>(
  'jupyter-singularity:ISingularity',
  'The sessions of the Singularity scheduler, kept current by its event stream.'
);
