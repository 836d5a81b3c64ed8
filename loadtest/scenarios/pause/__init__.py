"""Five producers through a pause of the volume quota: every record once and in order, no spinning, no disconnects."""
