"""What a gateway keeps on its own disk over a restart."""
