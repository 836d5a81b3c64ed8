"""Exemptions that a client can give itself: it chooses its client-id, and not its user."""

from collections.abc import Iterator, Sequence

from gateway.quotas.entity import DEFAULT, Default, EntityQuota


def exemption_warnings(entities: Sequence[EntityQuota]) -> Iterator[str]:
    """One line for each entity of `quotas.entities` that exempts a client-id of any user, while others limit users."""
    if not any(quota.entity.user is not None and quota.limits for quota in entities):
        return
    for index, quota in enumerate(entities):
        user, client_id = quota.entity.user, quota.entity.client_id
        if (quota.exempt or quota.exempt_from) and client_id is not None and (user is None or user is DEFAULT):
            name = client_id.value if isinstance(client_id, Default) else client_id
            left = "the quotas by user" if quota.exempt else f"quotas.{' and quotas.'.join(quota.exempt_from)}"
            row = f"[{', '.join(quota.exempt_from)}]" if quota.exempt_from else "true"
            yield (
                f"quotas.entities[{index}].client-id: {name} is exempt, and a client chooses its own client-id, so any user can"
                f" leave {left} with it — exempt the user that this client authenticates as:"
                f" {{user: NAME, exempt: {row}}}"
            )
