"""The state of devices in a checkpoint, and the driver's own way to take it."""
