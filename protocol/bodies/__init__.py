"""One module per API, or per family of APIs. Each decodes or changes only the fields that the gateway needs."""
