import { Token } from '@lumino/coreutils';

import { Api } from './api';
import { Behind } from './model/behind';
import { Feed } from './model/feed';
import { Sessions } from './model/sessions';
import { Sidebar } from './model/sidebar';
import { OpenTiers } from './model/tiers';

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
