"""Quotas of users, client-ids and addresses that stand in the config file (KIP-13, KIP-546)."""
