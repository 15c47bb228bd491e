// What browsers have and jsdom lacks.
Object.assign(globalThis, {
  IS_REACT_ACT_ENVIRONMENT: true,
  DragEvent: class extends MouseEvent {},
  ResizeObserver: class {
    observe(): void {}
    disconnect(): void {}
  }
});
