import { JupyterFrontEnd } from '@jupyterlab/application';
import { TranslationBundle } from '@jupyterlab/translation';
import { MenuSvg } from '@jupyterlab/ui-components';
import { Menu } from '@lumino/widgets';

import { ISession } from './model/session';
import { isOffered, KEEP_S, TIERS, Verb, verbLabel, VERBS } from './model/verbs';
import { OUTPUT_COMMAND, verbCommand, WHY_COMMAND } from './plugins/names';

/** What is chosen from in a menu of its own: the keys that the verb's command gets. */
const CHOICES: Partial<Record<Verb, readonly Record<string, string | number>[]>> = {
  keep: [...KEEP_S, 0].map(for_s => ({ for_s })),
  tier: TIERS.map(tier => ({ tier }))
};

/** Lumino gives an entry that opens a menu no role: screen readers do not take it for an entry. (Nor
 * its lines between entries, which can have the focus; so there is none here.) */
class Renderer extends MenuSvg.Renderer {
  override createItemARIA(data: Menu.IRenderData): ReturnType<Menu.Renderer['createItemARIA']> {
    return { role: 'menuitem', ...super.createItemARIA(data) };
  }
}

/** Show all that can be done with a session, and the commands in `more`, below an element, which
 * gets the focus back. */
export function openMenu(
  commands: JupyterFrontEnd['commands'],
  session: ISession,
  at: HTMLElement,
  trans: TranslationBundle,
  more: readonly string[] = []
): void {
  const args = { session: session.id };
  const menu = new MenuSvg({ commands, renderer: new Renderer() });
  menu.title.label = session.name;
  for (const verb of VERBS.filter(each => isOffered(each, session))) {
    const command = verbCommand(verb);
    const choices = CHOICES[verb];
    if (choices) {
      const submenu = new MenuSvg({ commands });
      submenu.title.label = verbLabel(verb, trans);
      for (const choice of choices) {
        if (choice.tier !== session.tier) {
          submenu.addItem({ command, args: { ...args, ...choice } });
        }
      }
      menu.addItem({ type: 'submenu', submenu });
    } else {
      menu.addItem({ command, args });
    }
  }
  menu.addItem({ command: WHY_COMMAND, args });
  if (session.run?.output) {
    menu.addItem({ command: OUTPUT_COMMAND, args });
  }
  more.forEach(command => menu.addItem({ command }));
  menu.aboutToClose.connect(() => at.focus());
  const { left, bottom } = at.getBoundingClientRect();
  menu.open(left, bottom);
  menu.activeIndex = 0;
}
