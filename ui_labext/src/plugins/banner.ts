import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { isTaken, nextNotice } from '../model/words/notice';
import { first, Plans } from '../model/server/plans';
import { ISession } from '../model/sessions/session';
import { Standings } from '../model/sessions/standing';
import { INotebooks, kernelOf, Notebooks } from '../notebooks';
import { ISingularity } from '../tokens';
import { Banner } from '../view/banner';
import { DOMAIN, verbCommand } from './names';

/** How often it is looked whether something planned is near. */
const LOOK_MS = 5_000;

/** For how long "Keep alive" keeps a session. */
const KEEP_S = 30 * 60;

/** The line above a notebook whose session was taken, is back, or is about to be taken. */
export const bannerPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:banner',
  description: 'Says in a notebook that its session was taken, why, and what came back.',
  autoStart: true,
  requires: [ISingularity, INotebooks, INotebookTracker],
  optional: [ITranslator, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    { api }: ISingularity,
    notebooks: Notebooks,
    tracker: INotebookTracker,
    translator: ITranslator | null,
    registry: ISettingRegistry | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const standings = new Standings(async session => (await api.why(session)).standing);
    const plans = new Plans(() => api.planned());
    let wanted = true;
    registry?.load(bannerPlugin.id).then(
      settings => {
        const read = () => {
          wanted = settings.get('show').composite !== false;
        };
        settings.changed.connect(read);
        read();
      },
      (error: Error) => console.error('jupyter-singularity: its settings cannot be read', error)
    );
    const show = (panel: NotebookPanel) => {
      const followed = notebooks.of(panel);
      const banner = new Banner(trans, offer => {
        const { session } = followed;
        if (session) {
          const said = offer === 'keep' ? { for_s: KEEP_S } : {};
          void app.commands.execute(verbCommand(offer), { session: session.id, ...said });
        }
      });
      panel.contentHeader.addWidget(banner);
      const look = (before: ISession | null, now: ISession | null) => {
        if (!now || !wanted) {
          banner.tell(null);
          return;
        }
        const asks = isTaken(now) || now.state === 'waiting';
        const standing = asks ? standings.of(now) : null;
        const planned = first(now.planned, plans.of(kernelOf(panel)));
        const seen = { ...now, planned };
        const notice = nextNotice(before, seen, standing, banner.notice, Date.now(), trans);
        if (notice !== undefined) {
          banner.tell(notice);
        }
      };
      const again = () => look(followed.session, followed.session);
      const timer = setInterval(again, LOOK_MS);
      const stops = [followed.follow(look), standings.subscribe(again), () => clearInterval(timer)];
      panel.disposed.connect(() => stops.forEach(stop => stop()));
      again();
    };
    tracker.widgetAdded.connect((_, panel) => show(panel));
  }
};
