"""The job: finds new hours, reads their events once, stores their aggregates, and writes the reports."""
