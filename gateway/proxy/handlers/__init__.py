"""Requests that Weir opens, one file per group of APIs; see `session.exchange`."""
