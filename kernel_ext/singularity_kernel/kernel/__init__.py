"""What runs inside a session, in its kernel or as the kernel's parent."""
