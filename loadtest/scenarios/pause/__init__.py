"""Five producers during a pause by the volume quota: no record is lost, repeated or reordered, no spinning, no disconnects."""
