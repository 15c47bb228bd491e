import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

import { Api } from '../api';
import { Behind } from '../model/sessions/behind';
import { Feed } from '../model/server/feed';
import { Sessions } from '../model/sessions/sessions';
import { Sidebar } from '../model/sessions/sidebar';
import { OpenTiers } from '../model/words/tiers';
import { ISingularity } from '../tokens';

/** The sessions, for all the other plugins. */
export const sessionsPlugin: JupyterFrontEndPlugin<ISingularity> = {
  id: 'jupyter-singularity:sessions',
  description: 'Follows the sessions of this user on the Singularity scheduler.',
  autoStart: true,
  provides: ISingularity,
  activate: (app: JupyterFrontEnd): ISingularity => {
    const api = new Api(app.serviceManager.serverSettings);
    const sessions = new Sessions();
    const feed = new Feed(api, sessions);
    void feed.start();
    const behind = new Behind(() => api.kernels(), sessions);
    const tiers = new OpenTiers(user => api.tiers(user));
    sessions.watch((before, now) => {
      if (!before) {
        void tiers.look(now.user); // a menu shows what is known when it opens
      }
    });
    return { api, sessions, feed, behind, tiers, sidebar: new Sidebar(api, sessions) };
  }
};
