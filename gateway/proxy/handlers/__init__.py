"""The proxy's own request handlers, one file per group of APIs; `registry` has all factories."""
