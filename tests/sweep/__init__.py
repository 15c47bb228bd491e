"""Every operator on the proxied device, compared with the host (`python -m sweep --help`)."""
