"""torch.distributed in a session's process."""
