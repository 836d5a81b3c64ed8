"""The evenness comparison: the same unpaced clients with the same quota, held by the broker itself and by Weir."""
