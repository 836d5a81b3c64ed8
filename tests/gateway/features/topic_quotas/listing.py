"""Gives quotas of topics the list of the cluster's topics, as `ScopedTopicQuotas` does."""

from collections.abc import Mapping

from gateway.features.topic_quotas.rules import TopicListing, TopicQuotas


def list_topics(quotas: TopicQuotas, topics: Mapping[str, bytes]) -> None:
    quotas.take(TopicListing(topics, quotas.own, quotas._listing))
