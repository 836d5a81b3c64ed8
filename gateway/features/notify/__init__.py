"""Webhooks for tenants and operators: an entity nears its quota, is throttled, and is no longer throttled."""
