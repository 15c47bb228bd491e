import type { Menu } from '@lumino/widgets';

type Drawn = ReturnType<Menu.IRenderer['renderItem']>;

/**
 * Describe an entry of a menu to people: what it does is a tooltip, and screen readers take what
 * opens a menu for an entry, and a line between entries for one, which cannot have the focus.
 * Lumino does none of this.
 */
export function describeEntry(drawn: Drawn, item: Menu.IItem): Drawn {
  const attributes = drawn.attrs as Record<string, unknown>;
  if (item.type === 'separator') {
    delete attributes.tabindex;
    delete attributes.onfocus;
    attributes.role = 'separator';
    return drawn;
  }
  const caption = item.submenu?.title.caption || item.caption;
  if (caption) {
    attributes.title = caption;
  }
  attributes.role ??= 'menuitem';
  return drawn;
}
