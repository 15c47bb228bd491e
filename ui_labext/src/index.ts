import { bannerPlugin } from './plugins/banner';
import { commandsPlugin } from './plugins/commands';
import { panelPlugin } from './plugins/panel';
import { sessionsPlugin } from './plugins/sessions';
import { statusPlugin } from './plugins/status';

export { ISingularity } from './tokens';

export default [sessionsPlugin, commandsPlugin, panelPlugin, statusPlugin, bannerPlugin];
