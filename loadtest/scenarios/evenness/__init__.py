"""Compares how evenly unpaced clients move under the broker's own quota and under Weir's."""
