"""Mutation testing: small defects are planted into quotas, framing and states, and the tests have to notice them."""
