"""Recent use of quotas, saved so that a restart gives no free burst."""
