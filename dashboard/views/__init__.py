"""One module a page; each has ``page(dataset)``."""
