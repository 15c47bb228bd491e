"""What administrators run: drains, upgrades, quotas, health. Pure."""
