"""Consumer groups of several libraries under a rate of requests that is too small for them."""
