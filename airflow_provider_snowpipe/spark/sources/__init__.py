"""Where rows come from: what a source is, the registry of sources, and a folder for each of them."""
