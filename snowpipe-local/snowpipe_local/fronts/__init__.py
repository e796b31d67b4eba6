"""Wire fronts: streaming REST, stage upload, connector protocol and SQL API."""
