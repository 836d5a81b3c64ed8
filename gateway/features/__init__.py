"""The features: one folder each, with the feature's config, rules, handlers, runtime and metrics."""
