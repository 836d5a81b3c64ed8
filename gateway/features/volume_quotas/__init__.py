"""Volume quotas: slow producers down before any disk of the cluster is full.

Source: the Strimzi proposal "Cluster Wide Volume Usage Quota Management" (its first form, with a usage topic).
"""
