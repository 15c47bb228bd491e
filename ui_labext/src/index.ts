import { bannerPlugin } from './plugins/banner';
import { commandsPlugin } from './plugins/commands';
import { kernelPlugin } from './plugins/kernel';
import { notebooksPlugin } from './plugins/notebooks';
import { panelPlugin } from './plugins/panel';
import { promptsPlugin } from './plugins/prompts';
import { sessionsPlugin } from './plugins/sessions';
import { statusPlugin } from './plugins/status';
import { toolbarPlugin } from './plugins/toolbar';

export { ISingularity } from './tokens';

export default [
  sessionsPlugin,
  notebooksPlugin,
  commandsPlugin,
  panelPlugin,
  statusPlugin,
  toolbarPlugin,
  bannerPlugin,
  promptsPlugin,
  kernelPlugin
];
