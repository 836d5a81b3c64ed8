"""`weir report --what-if FILE`: replays the use in the ledger through the token buckets of other quotas."""
