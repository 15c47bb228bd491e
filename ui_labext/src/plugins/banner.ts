import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { nextNotice } from '../model/notice';
import { ISession } from '../model/session';
import { kernelOf, watchKernel } from '../notebooks';
import { ISingularity } from '../tokens';
import { Banner } from '../view/banner';
import { DOMAIN } from './names';

/** The line above a notebook whose session was taken. */
export const bannerPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:banner',
  description: 'Says in a notebook that its session was taken, why, and what came back.',
  autoStart: true,
  requires: [ISingularity, INotebookTracker],
  optional: [ITranslator, ISettingRegistry],
  activate: (
    _: JupyterFrontEnd,
    { sessions, behind }: ISingularity,
    notebooks: INotebookTracker,
    translator: ITranslator | null,
    registry: ISettingRegistry | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
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
    notebooks.widgetAdded.connect((__, panel) => {
      const banner = new Banner(trans);
      panel.contentHeader.addWidget(banner);
      const take = (before: ISession | null, now: ISession) => {
        const notice = wanted ? nextNotice(before, now, banner.notice, trans) : null;
        if (notice !== undefined) {
          banner.tell(notice);
        }
      };
      const look = () => {
        const kernel = kernelOf(panel);
        const session = kernel && behind.session(kernel);
        if (session) {
          take(session, session);
        }
      };
      const stops = [
        sessions.watch((before, now) => {
          const kernel = kernelOf(panel);
          if (kernel && behind.session(kernel)?.id === now.id) {
            take(before, now);
          }
        }),
        behind.subscribe(look)
      ];
      watchKernel(panel, behind, look);
      panel.disposed.connect(() => stops.forEach(stop => stop()));
    });
  }
};
