"""What `torch.cuda` and `torch._C` answer in a session's process."""
