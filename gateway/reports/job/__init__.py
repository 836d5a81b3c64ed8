"""The job: which hours are new, their events read once, their aggregates kept, the reports made from those and written."""
